"""`score` for many days before Spark: what it looks at without a JVM."""

import pytest
import redis

from batch_job import run_record
from batch_job.launch import spark_submit
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, NEXT_DAY, Cli, planned, write_day

DAYS = ("--from", DAY, "--to", NEXT_DAY)


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    """Of a host without a Java."""
    return {**environment, "JAVA_HOME": "/nowhere"}


def test_it_says_without_a_jvm_that_there_is_work_and_that_a_nightly_run_goes_first(
    cli: Cli, state: StateSettings, client: "redis.Redis"
) -> None:
    assert cli("score", *DAYS, "--check").returncode == spark_submit.CHANGED
    write_day(state, [b'{"id": "a", "text": "hello"}'], DAY)
    run_record.write(state.runs_dir / DAY / "night.json", planned(state, client, DAY, "night"))
    for flags in ([], ["--check"]):
        done = cli("score", *DAYS, *flags)
        assert done.returncode == spark_submit.YIELDED
        assert done.stdout.startswith(f"2 days are left: run night of ds={DAY}, planned at ")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([*DAYS, "--run", "../x"], "--run '../x': expected letters"),
        (["--ds", DAY, "--run", "x"], "--publish and --run are of many days"),
        ([*DAYS, "--accept", "labels"], "--ds, --record and --accept are of one"),
    ],
)
def test_flags_that_do_not_fit_are_named(cli: Cli, flags: list[str], problem: str) -> None:
    done = cli("score", *flags)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr
