"""python -m batch_job.archive: put the classes that a run's JVM loads into an archive it can map.

Read from Spark's jars, loading and checking them takes seconds of every run. An archive fits one JVM and one set of
jars; a JVM that cannot use it says nothing and reads the jars, so that a wrong one costs only time.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from batch_job.launch import spark_submit

_WARM = Path(__file__).parent / "jobs" / "warm.py"


def make(archive: Path, environ: Mapping[str, str]) -> str:
    """Write it, instead of one that is there. Empty, or why there is none: the last line of whoever failed."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder, archive.name)
        if problem := _submit(f'"-XX:ArchiveClassesAtExit={made}"', [str(_WARM)], environ):
            return problem
        # One that a full disk has cut off kills whoever maps it.
        if problem := _submit(spark_submit.archived(made), ["--version"], environ):
            return f"the archive was damaged: {problem}"
        made.replace(archive)
    return ""


def _submit(option: str, what: Sequence[str], environ: Mapping[str, str]) -> str:
    """Empty, or why it failed."""
    conf = {**spark_submit.SPARK_CONF, spark_submit.JAVA_OPTIONS: f"{spark_submit.ONE_COMPILER} {option}"}
    command = ["spark-submit", "--master", "local[2]", *spark_submit.conf_args(conf), *what]
    environment = {**environ, **spark_submit.spark_environment(environ)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = (done.stderr or done.stdout).strip() or f"spark-submit ended with {done.returncode}"
    return said.splitlines()[-1] if done.returncode else ""


def main() -> int:
    """0, also where there is none: runs start later, and are otherwise the same."""
    archive = spark_submit.class_archive(sys.prefix)
    problem = make(archive, {**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix})
    print(f"no archive of classes, so runs start seconds later: {problem}" if problem else archive)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
