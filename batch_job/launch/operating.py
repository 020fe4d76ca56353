"""For operators of Airflow, beside the tasks of a run: links, the trigger form, and when a run counts as late. Standard
library only."""

import os
from collections.abc import Mapping
from urllib.parse import quote

#: A model's name as `shared_model.releases.manifest` has it, or nothing.
MODEL_OR_NONE = r"^([a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?)?(?!\n)$"
#: How long after it was queued a run is late, unless TANDEM_LATE_SECONDS says so.
LATE_SECONDS = 4 * 3600.0
#: Settings: Spark's UI or history server, and the board of both service levels. Without them there is no link.
SPARK_URL, BOARD_URL = "TANDEM_SPARK_URL", "TANDEM_SLA_BOARD_URL"


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
    return f"plugin/tandem/tandem/runs/{quote(ds, safe='')}/{quote(run_id, safe='')}"
