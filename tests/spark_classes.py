"""Archive the classes of Spark's drivers, so that each of the suite's starts sooner.

`python -m tests.spark_classes` does it at once, `pytest -p tests.spark_classes` beside the first tests. Loading and
checking them takes 3 CPU seconds of every driver. A JVM that finds no archive, or one that does not fit it, reads
Spark's jars and says nothing.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parents[1] / ".tandem" / "spark-classes.jsa"
#: Compiling well takes a JVM longer than it saves in a test.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
#: Of every JVM of the suite that runs Spark.
OPTIONS = f'{_SHORT_LIVED} "-XX:SharedArchiveFile={ARCHIVE}"'
_END_SECONDS = 120.0
_ARCHIVING = pytest.StashKey["subprocess.Popen[bytes]"]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Once, not in every worker."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[_ARCHIVING] = subprocess.Popen([sys.executable, "-m", __name__])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A suite that could not archive fails, for each of its drivers took longer."""
    archiving = session.config.stash.get(_ARCHIVING, None)
    if archiving and archiving.wait(_END_SECONDS) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def main() -> None:
    """Make the archive, unless there is one that is newer than Spark."""
    # Not sooner: every test process imports this module.
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > jars.stat().st_mtime:
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder, ARCHIVE.name)
        os.environ["SPARK_SUBMIT_OPTS"] = f'{_SHORT_LIVED} "-XX:ArchiveClassesAtExit={made}"'
        _load_classes(Path(folder))
        made.replace(ARCHIVE)


def _load_classes(folder: Path) -> None:
    """Read, map, group and write a few lines, and wait until the JVM has ended."""
    from pyspark.sql import SparkSession

    from batch_job.launch import spark_submit

    os.environ |= spark_submit.spark_environment({**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix})
    (folder / "lines").write_text('{"id": "a", "text": "hello"}\n' * 8)
    spark = SparkSession.builder.master("local[2]").config(map=spark_submit.spark_conf()).getOrCreate()
    lines = spark.read.text(str(folder / "lines")).repartition(2).mapInArrow(lambda batches: batches, "value string")
    lines.groupBy("value").count().write.parquet(str(folder / "counts"))
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()
    if code := jvm.wait(_END_SECONDS):
        raise SystemExit(f"Spark's JVM ended with {code}; no classes were archived")


if __name__ == "__main__":
    main()
