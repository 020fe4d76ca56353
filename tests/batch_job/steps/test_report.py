"""`report --page` prints the page of any run, and nothing else; `report` puts the run on the SLA board."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from batch_job import run_record
from batch_job.launch import spark_submit
from batch_job.run_record import QuarantinedLine, State
from shared_model.redis_store import keys
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, Cli
from tests.batch_job.test_run_record import FINDINGS, PLANNED

HOSTILE = "<script>alert('ä')</script>"
#: Also a file's name.
RUN = '<img src=x onerror="alert(1)">'


@pytest.fixture
def refused(state: StateSettings) -> Path:
    examples = (QuarantinedLine("bad_json", "a.jsonl", HOSTILE),)
    findings = replace(FINDINGS, quarantined_examples=examples)
    path = state.runs_dir / DAY / f"{RUN}.json"
    run_record.write(path, replace(PLANNED, run_id=RUN, state=State.REFUSED, problem=RUN, findings=findings))
    return path


def test_the_page_of_a_refused_run_is_printed_escaped_and_nothing_is_written(cli: Cli, refused: Path) -> None:
    done = cli("report", "--ds", DAY, "--record", str(refused), "--page")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert "&lt;script&gt;alert(&#39;ä&#39;)&lt;/script&gt;" in done.stdout
    assert "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;" in done.stdout
    assert "<script" not in done.stdout
    assert "<img" not in done.stdout
    assert not (refused.parent / RUN).exists()


def test_the_page_of_a_run_that_is_not_there_is_refused_in_one_line(cli: Cli, refused: Path) -> None:
    done = cli("report", "--ds", DAY, "--record", str(refused.parent / "other.json"), "--page")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("batch_job report: ")
    assert "other.json is not there" in done.stderr


def test_a_refused_run_is_on_the_sla_board(cli: Cli, refused: Path, client: "redis.Redis") -> None:
    client.delete(keys.recent_runs())
    assert cli("report", "--ds", DAY, "--record", str(refused)).returncode == spark_submit.REFUSED
    (told,) = map(json.loads, client.lrange(keys.recent_runs(), 0, -1))
    assert (told["ds"], told["run_id"], told["state"]) == (DAY, RUN, "refused")
