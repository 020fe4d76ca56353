"""Extra links of tasks: buttons that lead from a task to its run's report, to Spark and to the board of service levels.
Those of a page elsewhere are there where its address is set."""

from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from batch_job.launch import operating


def report_address(step: Any, run_id: str) -> str:
    """The report of a step's night: its page on the host that the operator's browser has this link from."""
    return _on_this_host(operating.report_path(step.ds, operating.run_name(run_id, step.further)))


def picture_address(step: Any, run_id: str) -> str:
    """The plot of its labels, on that host."""
    return _on_this_host(operating.picture_path(step.ds, operating.run_name(run_id, step.further)))


def _on_this_host(path: str) -> str:
    root = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{root}/{path}"


class ReportLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow has no types here
    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return report_address(operator, ti_key.run_id)


class SparkLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow has no types here
    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return operating.link(operating.SPARK_URL)


class BoardLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow has no types here
    name = "SLA board"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return operating.link(operating.BOARD_URL)


def of_step() -> tuple[BaseOperatorLink, ...]:
    """Of every step's task. Raises: ValueError for an address that a browser cannot open."""
    return (ReportLink(), *((BoardLink(),) if operating.link(operating.BOARD_URL) else ()))


def of_spark() -> tuple[BaseOperatorLink, ...]:
    """Of a task that runs Spark. Raises: ValueError."""
    return (*of_step(), *of_spark_alone())


def of_spark_alone() -> tuple[BaseOperatorLink, ...]:
    """Of one that has no report. Raises: ValueError."""
    return (SparkLink(),) if operating.link(operating.SPARK_URL) else ()
