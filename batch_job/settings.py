"""Settings of the nightly run; see also `shared_model.settings.StateSettings`."""

import string
from dataclasses import dataclass
from datetime import date

from batch_job.launch import spark_submit
from batch_job.launch.spark_submit import POLL_SECONDS, WAIT_SECONDS
from batch_job.run_record import Columns, Format
from shared_model.published.epochs import KEEP_SECONDS
from shared_model.settings import NOT_NEGATIVE, POSITIVE, Check, setting
from shared_model.types import Device

#: Fields of the day that a path of messages may have.
DAY_FIELDS = ("ds", "year", "month", "day")


def _is_template(path: str) -> bool:
    try:
        return {field for _, field, _, _ in string.Formatter().parse(path) if field is not None} <= set(DAY_FIELDS)
    except ValueError:
        return False


#: Where a setting is 0. A shard of a GPU is several of its batches.
_CPU_SHARD_ROWS, _GPU_SHARD_ROWS = 4096, 65_536
_MOST_FILE_MEGABYTES = 512
_TASK_ROWS, _GPU_SHARDS = 16_384, 16

_AT_LEAST_0 = Check(lambda value: value >= 0, "0 or more")


@dataclass(frozen=True)
class InputSettings:
    """Where a day's messages are, what their columns are called, and how long a run waits for them."""

    input_path: str = setting(
        "",
        "A day's messages: a folder or a URL (s3://, gs://, az://), with {ds} or {year}, {month} and {day} in it; "
        "without, a folder or a Delta table of days. Empty means TANDEM_MESSAGES.",
        Check(_is_template, "a path or a URL, in braces nothing but {ds}, {year}, {month} or {day}"),
    )
    input_partition: str = setting("ds", "Partition column that holds the day where the path does not.")
    input_format: str = setting(
        "",
        "What the messages are written as; empty: as their names end, or a Delta table.",
        Check(lambda value: value in set(Format), "jsonl, csv, parquet or delta"),
    )
    input_id: str = setting("id", "Column that holds a message's id.")
    input_text: str = setting("text", "Column that holds a message's text.")
    input_pair: str = setting("", "Column that holds the second text, for a release that reads pairs.")
    nightly_model: str = setting("", "Model to score with, into tables of its own; empty: the default model.")
    input_wait_seconds: float = setting(
        WAIT_SECONDS, "How long a run waits for messages that are not there.", _AT_LEAST_0
    )
    input_poll_seconds: float = setting(POLL_SECONDS, "How often it looks for them.", POSITIVE)

    @property
    def columns(self) -> Columns:
        return Columns(self.input_id, self.input_text, self.input_pair)


def _is_span(text: str) -> bool:
    first, dots, last = text.partition("..")
    try:
        return bool(dots) and date.fromisoformat(first) <= date.fromisoformat(last) and len(text) == len(_SPAN)
    except ValueError:
        return False


_SPAN = "2026-01-01..2026-01-30"


@dataclass(frozen=True)
class DriftSettings:
    """With which days windows are compared, and when the step fails."""

    drift_baseline: str = setting(
        "",
        "The days that windows are compared with; empty: the oldest 30 committed days before each window.",
        Check(lambda value: not value or _is_span(value), f"two days, such as {_SPAN}"),
    )
    drift_bound: float = setting(
        0.0,
        "Population stability index beyond noise with which `drift` fails; 0: it never does.",
        NOT_NEGATIVE,
    )

    @property
    def baseline(self) -> tuple[str, str] | None:
        """First and last day, where they are fixed."""
        first, _, last = self.drift_baseline.partition("..")
        return (first, last) if last else None


#: Staged scores wait for a person for a week.
_KEEP = Check(lambda days: days == 0 or days >= 7, "7 or more, or 0")


@dataclass(frozen=True)
class HousekeepingSettings:
    """How long `housekeeping` keeps things."""

    keep_runs_days: int = setting(90, "How long records and reports of runs are kept; 0: for ever.", _KEEP)
    keep_quarantine_days: int = setting(90, "How long quarantined lines are kept; 0: for ever.", _KEEP)


@dataclass(frozen=True)
class NightlySettings:
    """Where Spark is, how a partition is cut, how much deferred work one run takes, and what is published."""

    spark_master: str = setting(
        "local[*]",
        "Spark master of `python -m batch_job score`; Airflow uses its connection.",
        Check(
            lambda url: url == "yarn" or url.startswith(("local", "spark://", "k8s://")),
            "local[…], spark://HOST:PORT, yarn or k8s://…",
        ),
    )
    spark_conf: str = setting(
        "",
        "More of Spark's settings, which win over Tandem's: a file as of spark-submit's --properties-file, or "
        "NAME=VALUE pairs by spaces. spark.eventLog.enabled=true keeps logs for a history server.",
        Check(spark_submit.is_passed_conf, "a file that can be read, or spark.NAME=VALUE pairs by spaces"),
    )
    spark_secret_file: str = setting("", "File with the secret of a standalone Spark cluster.")
    nightly_batch_rows: int = setting(
        0, "Most rows of one engine batch; 0: 64 on CPU, and on a GPU as many as its tokens are.", NOT_NEGATIVE
    )
    nightly_batch_tokens: int = setting(
        0,
        "Most tokens of one engine batch, padding included; 0: 2048 on CPU; on a GPU 32768 to 131072, as its memory "
        "allows, and 16384 for DeBERTa and MPNet.",
        NOT_NEGATIVE,
    )
    nightly_task_rows: int = setting(
        0, "Lines of one Spark task: what a lost executor costs; 0: 16384 on CPU, 16 shards on a GPU.", NOT_NEGATIVE
    )
    nightly_unit_rows: int = setting(
        0,
        "Most rows of a shard: scored together, one file, and what a killed run need not do again; 0: 4096 on CPU, "
        "65536 on a GPU.",
        Check(lambda value: 0 <= value <= _GPU_SHARD_ROWS, f"0 to {_GPU_SHARD_ROWS}"),
    )
    nightly_file_megabytes: float = setting(
        128.0,
        "Most megabytes of a file into which a commit merges the shards of a day of more than eight; 0: it merges "
        "none. A reader that verifies a hash holds the file in memory.",
        Check(lambda value: 0 <= value <= _MOST_FILE_MEGABYTES, f"0 to {_MOST_FILE_MEGABYTES}"),
    )
    quarantine_share: float = setting(
        0.01,
        "Share of a day's lines above which quarantining them fails the day.",
        Check(lambda value: 0 <= value <= 1, "0 to 1"),
    )
    nightly_collapse: bool = setting(True, "Run texts that are the same once for all their rows.")
    nightly_idle: bool = setting(False, "Run executors at idle priority, where they share a host with the service.")
    nightly_int8: bool = setting(False, "Score in INT8 instead of half precision, on CPU: faster, and less exact.")
    nightly_poison: int = setting(20, "Texts of a task that may fail by themselves; with more it fails.", NOT_NEGATIVE)
    nightly_tensor_parallel: int = setting(
        1,
        "GPUs that score each batch together, for a model that does not fit one; Spark gives an executor as many.",
        POSITIVE,
    )
    price_per_hour: float = setting(0.10, "What the machines of a run cost per hour; for the report.", NOT_NEGATIVE)
    price_currency: str = setting("USD", "The currency of that price.")
    deferred_drain_limit: int = setting(
        10_000, "Most deferred requests one run answers; 0 leaves them to idle lanes.", NOT_NEGATIVE
    )
    publish_megabytes: float = setting(
        512.0,
        "Most memory of Redis that one epoch takes, of up to four; the texts that came most often go in first.",
        POSITIVE,
    )
    publish_keep_seconds: int = setting(KEEP_SECONDS, "How long an epoch is kept.", POSITIVE)

    def shard_rows(self, device: Device) -> int:
        """Most rows of a shard that is scored on this device."""
        return self.nightly_unit_rows or (_CPU_SHARD_ROWS if device is Device.CPU else _GPU_SHARD_ROWS)

    def task_rows(self, device: Device) -> int:
        """Lines of a task that scores on this device: between two tasks a GPU is idle."""
        if self.nightly_task_rows or device is Device.CPU:
            return self.reading_task_rows
        return _GPU_SHARDS * self.shard_rows(device)

    @property
    def reading_task_rows(self) -> int:
        """Lines of a task that reads and judges."""
        return self.nightly_task_rows or _TASK_ROWS
