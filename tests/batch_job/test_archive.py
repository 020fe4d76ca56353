"""The archive of classes: made with the environment, used by every run, and never a run's end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batch_job import archive
from batch_job.launch import spark_submit

GIVEN = {**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix}


def submit(conf: dict[str, str], *what: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = ["spark-submit", *spark_submit.conf_args(conf), *what]
    environment = {**os.environ, **spark_submit.spark_environment(GIVEN), **environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("folder", ["runtime", "a runtime"])
def test_a_run_takes_sparks_classes_from_the_archive(tmp_path: Path, folder: str) -> None:
    there, log = spark_submit.class_archive(str(tmp_path / folder)), tmp_path / "classes.log"
    there.parent.mkdir(parents=True)
    assert spark_submit.class_archive(sys.prefix).exists(), "`make setup` makes it"
    there.symlink_to(spark_submit.class_archive(sys.prefix))
    conf = spark_submit.spark_conf({"TANDEM_RUNTIME_PREFIX": str(tmp_path / folder)})
    conf[spark_submit.JAVA_OPTIONS] += f" -Xlog:class+load=info:file={log}"
    submit(conf, "--version")
    (read,) = (line for line in log.read_text().splitlines() if " org.apache.spark.deploy.SparkSubmit " in line)
    assert read.endswith("source: shared objects file (top)")


def test_without_an_archive_there_is_no_word_of_one(tmp_path: Path) -> None:
    given = {"TANDEM_RUNTIME_PREFIX": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path)}
    assert spark_submit.spark_conf(given) == spark_submit.SPARK_CONF


def test_where_it_does_not_fit_it_is_passed_over_in_silence(tmp_path: Path) -> None:
    """Spark's folder of settings is on its class path."""
    done = submit(spark_submit.spark_conf(GIVEN), "--version", SPARK_CONF_DIR=str(tmp_path))
    assert "archive" not in done.stdout + done.stderr
    assert "version 4" in done.stderr


@pytest.mark.parametrize(
    ("fails", "problem"), [(0, "no room"), (1, "the archive was damaged: no room")], ids=["making", "looking at it"]
)
def test_what_was_there_stays_where_none_can_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: int, problem: str
) -> None:
    said = iter([""] * fails + ["no room"])
    monkeypatch.setattr(archive, "_submit", lambda option, what, environ: next(said))
    there = tmp_path / "spark.jsa"
    there.write_text("before")
    assert archive.make(there, GIVEN) == problem
    assert there.read_text() == "before"
    assert list(tmp_path.iterdir()) == [there]


@pytest.mark.proof
def test_an_archive_is_made_from_a_run_like_a_nights(tmp_path: Path) -> None:
    made = tmp_path / "spark.jsa"
    assert archive.make(made, GIVEN) == ""
    assert made.stat().st_size > 50e6
