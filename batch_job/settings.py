"""Settings of the nightly run; see also `shared_model.settings.StateSettings`."""

from dataclasses import dataclass

from shared_model.scorestore.epochs import KEEP_SECONDS
from shared_model.settings import POSITIVE, Check, setting


@dataclass(frozen=True)
class NightlySettings:
    """Where Spark is, how a partition is cut, how much deferred work one run takes, and what is published."""

    spark_master: str = setting("local[*]", "Spark master of `python -m batch_job score`; Airflow uses its connection.")
    nightly_batch_rows: int = setting(64, "Most rows of one engine batch.", POSITIVE)
    nightly_batch_tokens: int = setting(2048, "Most tokens of one engine batch, padding included.", POSITIVE)
    nightly_task_rows: int = setting(16_384, "Lines of one Spark task: what a lost executor costs.", POSITIVE)
    deferred_drain_limit: int = setting(
        10_000,
        "Most deferred requests one run answers; 0 leaves them to idle lanes.",
        Check(lambda value: value >= 0, "0 or more"),
    )
    publish_megabytes: float = setting(
        512.0, "Most memory of Redis that one epoch takes; the texts that came most often go in first.", POSITIVE
    )
    publish_keep_seconds: int = setting(KEEP_SECONDS, "How long an epoch is kept.", POSITIVE)
