"""The nightly run: plan → score → publish → report, one partition at a time; and its scores of any data frame.

Importing this package costs nothing, so that Airflow's environment can import `batch_job.launch.spark_submit`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batch_job.dataframes.scorer import scorer
    from batch_job.tables.spark_reader import read_scores

__all__ = ["read_scores", "scorer"]


def __getattr__(name: str) -> Any:
    if name == "read_scores":
        from batch_job.tables.spark_reader import read_scores

        return read_scores
    if name == "scorer":
        from batch_job.dataframes.scorer import scorer

        return scorer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
