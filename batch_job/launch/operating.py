"""For operators of Airflow, beside the tasks of a run: links, the trigger form, and when a run counts as late. Standard
library only."""

import os
import re
from collections.abc import Mapping
from urllib.parse import quote

#: A model's name as `shared_model.releases.manifest` has it, or nothing.
MODEL_OR_NONE = r"^([a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?)?(?!\n)$"
#: How long after it was queued a run is late, unless TANDEM_LATE_SECONDS says so.
LATE_SECONDS = 4 * 3600.0
#: Settings: Spark's UI or history server, and the board of both service levels. Without them there is no link.
SPARK_URL, BOARD_URL = "TANDEM_SPARK_URL", "TANDEM_SLA_BOARD_URL"


#: Setting: models that each nightly run scores the day with beside its own, by comma.
FURTHER_MODELS = "TANDEM_NIGHTLY_MODELS"


def further_models(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Raises: ValueError, which Airflow shows as the DAG's import error."""
    passed = environ.get(FURTHER_MODELS, "")
    names = [name.strip() for name in passed.split(",") if name.strip()]
    if strange := [name for name in names if not re.search(MODEL_OR_NONE, name)]:
        raise ValueError(f"{FURTHER_MODELS}={passed}: {strange[0]} is no name of a model")
    all_names = [*names, environ.get("TANDEM_NIGHTLY_MODEL", "")]
    if twice := [name for name in names if all_names.count(name) > 1]:
        raise ValueError(f"{FURTHER_MODELS}={passed}: {twice[0]} would score each day twice")
    return names


def run_name(run_id: str, further: str) -> str:
    """The name of a run's record: the run's own id, and of a further model's beside it that with the model."""
    return f"{run_id}@{further}" if further else run_id


def late_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Raises: ValueError, which Airflow shows as the DAG's import error."""
    seconds = float(environ.get("TANDEM_LATE_SECONDS") or LATE_SECONDS)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"TANDEM_LATE_SECONDS={seconds:g}: expected more than 0")
    return seconds


def link(setting: str, environ: Mapping[str, str] = os.environ) -> str:
    """The address that a setting gives, or nothing. Raises: ValueError where a browser cannot open it."""
    url = environ.get(setting, "").strip()
    if url and not url.startswith(("http://", "https://")):
        raise ValueError(f"{setting}={url}: expected an address that begins with http:// or https://")
    return url


def report_path(ds: str, run_id: str) -> str:
    """Where Airflow's UI shows the report of a run, below its own address: the page *Tandem*."""
    return f"plugin/tandem/{_run_path(ds, run_id)}"


def picture_path(ds: str, run_id: str) -> str:
    """Where Airflow's API server has the plot of a run's labels."""
    return f"{_run_path(ds, run_id)}/labels.svg"


def _run_path(ds: str, run_id: str) -> str:
    return f"tandem/runs/{quote(ds, safe='')}/{quote(run_id, safe='')}"


def may_frame(url: str, scheme: str) -> bool:
    """Whether browsers show `url` in a frame of a page that came over `scheme`: nothing over HTTP in one over HTTPS."""
    return url.startswith("https://") or scheme == "http"
