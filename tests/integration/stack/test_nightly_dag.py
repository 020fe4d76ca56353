"""Real nights: Airflow runs the DAG, Spark scores, Delta keeps, Redis serves, the service answers."""

from datetime import UTC, datetime

import pytest
import redis
from deltalake import DeltaTable
from tandem_stack import calls, up
from tandem_stack.checks import Problem
from tandem_stack.stack import DAG

from realtime_service.client import Client
from shared_model.demo_messages import FIRST_DAY
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases.store import Release
from tests.integration.stack.conftest import ROWS, Accepted, Night, Unanswered, Up, task_log
from tests.otlp import Collector
from tests.realtime_service.conftest import eventually


def test_everything_listens_on_loopback_only(running: Up, night: Night) -> None:
    # "::ffff:" is how a socket of both families shows an address of the older one.
    addresses = {address.removeprefix("::ffff:") for address, _ in night.listened}

    assert {port for _, port in running.plan.ports().values()} <= {port for _, port in night.listened}
    assert addresses <= {"127.0.0.1", "::1"}


def test_every_task_succeeds(night: Night) -> None:
    assert night.run.partition == str(FIRST_DAY)
    done = dict.fromkeys(("plan", "score", "judge", "publish", "report", "complete"), "success")
    assert night.run.tasks == {**done, **dict.fromkeys(("approve", "commit"), "skipped")}
    assert night.run.state == "success"
    assert night.run.note.startswith(f"{FIRST_DAY}: published, live as epoch {FIRST_DAY}.")
    assert f"; {ROWS:,} rows, " in night.run.note


def test_task_logs_can_be_read_without_log_servers(running: Up, night: Night) -> None:
    assert "ds=2026-01-14" in task_log(running, night.run.run_id, "report")


def test_a_night_is_one_trace_from_its_run_to_the_shards(night: Night, traces: Collector) -> None:
    """Airflow's own span of a task is the parent of the step's, which is that of the stages in Spark."""
    run = ("airflow.dag_run.run_id", night.run.run_id)

    def of_run() -> set[str]:
        return {span.trace for span in traces.spans if run in span.attributes.items()}

    eventually(of_run)
    (trace,) = of_run()
    spans = traces.until(trace, {"dag_run.nightly_scoring", "worker.score", "worker.publish", "shards"})

    def chain(name: str) -> list[str]:
        """The names of a span and of those above it."""
        found, by_id = next(span for span in spans if span.name == name), {span.id: span for span in spans}
        return [found.name, *(chain(by_id[found.parent].name) if found.parent in by_id else [])]

    assert chain("shards")[:4] == ["shards", "score", "batch_job score in Spark", "worker.score"]
    assert chain("batch_job publish")[:2] == ["batch_job publish", "worker.publish"]


def test_the_scores_are_in_the_table(running: Up, night: Night, release: Release) -> None:
    table = DeltaTable(running.plan.state.scores_table).to_pyarrow_table(partitions=[("ds", "=", str(FIRST_DAY))])

    assert table.num_rows == ROWS
    assert len(set(table["id"].to_pylist())) == ROWS
    assert set(table["release"].to_pylist()) == {release.id}


def test_the_scores_are_published_and_answer_calls(running: Up, night: Night, release: Release) -> None:
    with (
        RedisServer(running.plan.state) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        pointer = client.hgetall(keys.epoch_pointer(release.id))
    text = calls.archived_texts(running.plan.state.messages_dir, FIRST_DAY, 1)[0]

    assert pointer["ds"] == str(FIRST_DAY)
    with Client(running.plan.service.grpc_address) as online:
        # A single call may miss it: a look-up that takes too long is given up, and the text is scored.
        calls.wait_precomputed(online, text)


def test_a_day_that_is_none_is_refused_when_it_is_triggered(running: Up) -> None:
    with pytest.raises(Problem, match="'14 January' is not a 'date'"):
        running.api.trigger(DAG, {"day": "14 January"})


def test_a_day_without_messages_waits_and_holds_up_no_other(running: Up, night: Night, due: str) -> None:
    day, run = str(up.due_day(datetime.now(UTC))), running.api.run_state(DAG, due)

    assert (run.state, run.partition, run.note) == ("running", day, day)
    assert running.api.scheduled_days(DAG) == {day}


def test_only_what_is_due_or_triggered_runs(
    running: Up, due: str, runs: dict[str, str], accepted: Accepted, unanswered: Unanswered
) -> None:
    assert set(running.api.run_ids(DAG)) == {
        due,
        accepted.run.run_id,
        unanswered.run_id,
        unanswered.beside.run.run_id,
        *runs.values(),
    }
