"""Planning pins the release and the input; what is missing or has changed is named."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from batch_job import lookup
from batch_job.inputs.source import check_unchanged, read_folder
from batch_job.run_record import Columns
from batch_job.settings import InputSettings
from batch_job.steps import plan
from batch_job.steps.plan import InputWait
from shared_model.encoding import InputSpec
from shared_model.errors import JobError, NoInput
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases import pointer
from shared_model.releases.manifest import Facts
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, message, planned, write_day


def test_a_plan_pins_release_and_input(state: StateSettings, client: "redis.Redis", release: Release) -> None:
    write_day(state, [message(0, "hello"), b"", message(1, "again")])
    run = planned(state, client)
    assert (run.release, run.input.lines) == (release.id, 3)
    assert run.input.paths == [str(state.messages_dir / f"ds={DAY}" / "messages.jsonl")]


def test_a_missing_partition_is_named(state: StateSettings, client: "redis.Redis") -> None:
    with pytest.raises(JobError, match=r"no messages: .*ds=2026-01-14 is not a folder"):
        planned(state, client)
    (state.messages_dir / f"ds={DAY}").mkdir(parents=True)
    with pytest.raises(JobError, match=r"ds=2026-01-14 holds no file that ends in \.jsonl, \.jsonl\.gz, "):
        planned(state, client)


@pytest.mark.parametrize("ds", ["None", "14.01.2026", "2026-1-4", "2026-02-30", "../etc", "20260114"])
def test_what_is_no_day_is_refused(ds: str) -> None:
    remedy = "trigger the DAG with a partition key" if ds == "None" else "for example --ds 2026-01-14"
    with pytest.raises(JobError, match=f"expected a day as YYYY-MM-DD; {remedy}$"):
        lookup.check_day(ds)


@pytest.mark.parametrize(("content", "lines"), [(b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), (b"\n\n", 2)])
def test_lines_are_counted_as_spark_reads_them(tmp_path: Path, content: bytes, lines: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / ".part.jsonl").write_bytes(b"unfinished\n")
    (tmp_path / "_old.jsonl").write_bytes(b"hidden\n")
    assert [file.lines for file in read_folder(tmp_path).files] == [lines, lines]


def test_the_fingerprint_follows_names_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"one\n")
    first = read_folder(tmp_path).fingerprint
    assert read_folder(tmp_path).fingerprint == first
    file.write_bytes(b"two\n")
    changed = read_folder(tmp_path).fingerprint
    file.rename(tmp_path / "b.jsonl")
    assert len({first, changed, read_folder(tmp_path).fingerprint}) == 3


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 10_000)[:-20])
    with pytest.raises(JobError, match=r"a\.jsonl\.gz cannot be read"):
        read_folder(tmp_path)


def test_input_that_changed_since_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"one\n")
    planned_input = read_folder(tmp_path)
    check_unchanged(planned_input)
    file.write_bytes(b"one\ntwo\n")
    with pytest.raises(JobError, match=r"a\.jsonl changed after the run was planned \(4 bytes then\)"):
        check_unchanged(planned_input)
    file.unlink()
    with pytest.raises(JobError, match=r"a\.jsonl changed"):
        check_unchanged(planned_input)


@dataclass
class Time:
    """A clock that only waiting moves; `arrives` is called at each wait."""

    arrives: Callable[[float], None] = lambda now: None
    now: float = 0.0

    def wait(self, seconds: float, every: float) -> InputWait:
        return InputWait(seconds, every, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.arrives(self.now)


def test_a_day_that_is_late_is_waited_for_and_said_once(
    state: StateSettings, client: "redis.Redis", release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    time = Time(lambda now: write_day(state, [message(0, "late")]) if now >= 90 else None)
    run = plan.plan_run(state, client, DAY, "run", wait=time.wait(600, 30))
    assert (run.input.lines, time.now) == (1, 90)
    [said] = capsys.readouterr().err.splitlines()
    assert said.endswith("Waiting up to 600 s for them, looking every 30 s")


def test_a_day_that_does_not_come_in_time_is_named(state: StateSettings, client: "redis.Redis") -> None:
    time = Time()
    with pytest.raises(NoInput, match=r"no messages: .*ds=2026-01-14 is not a folder"):
        plan.plan_run(state, client, DAY, "run", wait=time.wait(100, 30))
    assert time.now == 100


def test_what_is_wrong_is_not_waited_for(state: StateSettings, client: "redis.Redis") -> None:
    write_day(state, [b'{"id": "a", "body": "b"}'])
    time = Time()
    with pytest.raises(JobError, match="has no column 'text'"):
        plan.plan_run(state, client, DAY, "run", wait=time.wait(100, 30))
    assert time.now == 0


def test_pairs_are_for_a_release_that_reads_them(state: StateSettings, client: "redis.Redis", release: Release) -> None:
    write_day(state, [b'{"id": "a", "text": "b", "other": "c"}'])
    with pytest.raises(JobError, match="reads single texts, and TANDEM_INPUT_PAIR is set"):
        plan.plan_run(state, client, DAY, "run", InputSettings(input_pair="other"))


def test_a_release_that_reads_pairs_needs_to_know_where_they_are(
    state: StateSettings, client: "redis.Redis", tmp_path: Path
) -> None:
    facts = Facts("pairs", "", OutputSpec(OutputKind.REGRESSION, ("same",), 1), InputSpec(8, pairs=True), "", "", ())
    store = Store(tmp_path)
    pointer.promote(store, client, store.seal({"config.json": b"{}"}, facts).id)
    write_day(state, [message(0, "hello")])
    of_pairs = replace(state, releases=str(tmp_path))
    with pytest.raises(JobError, match="reads pairs of texts; rows of the input hold one"):
        planned(of_pairs, client)
    write_day(state, [b'{"id": "a", "text": "b", "other": "c"}'])
    run = plan.plan_run(of_pairs, client, DAY, "run", InputSettings(input_pair="other"))
    assert run.input.columns == Columns(pair="other")
