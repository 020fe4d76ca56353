"""What the supervisor holds, every worker refuses: the text, by what the model reads of it, with a reason."""

import os
from collections.abc import Iterator

import pytest

from realtime_service.errors import ReplicaUnavailable
from realtime_service.workers import quarantine
from realtime_service.workers.journal import Suspect
from realtime_service.workers.quarantine import CAPACITY, Quarantine, QuarantineList, Verdict
from shared_model.encoding import Encoder, Reads
from shared_model.errors import BadInput
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases

RELEASE = "tiny-0123"


@pytest.fixture
def memory() -> Iterator[int]:
    made = quarantine.create()
    yield made
    os.close(made)


def encoder(release: str = RELEASE, types: bool = False) -> Encoder:
    return Encoder(tiny_releases.tokenizer(), Reads(max_tokens=64, types=types), release)


def fingerprint(text: str, release: str = RELEASE, types: bool = False) -> bytes:
    encoding = encoder(release, types).encode(text)
    return Suspect(
        release, encoding.ids.tobytes(), b"" if encoding.types is None else encoding.types.tobytes()
    ).fingerprint


def check(worker: Quarantine, *texts: str, release: str = RELEASE, types: bool = False) -> None:
    reader = encoder(release, types)
    worker.check(reader, [reader.encode(text) for text in texts])


@pytest.mark.parametrize("types", [False, True])
def test_a_guilty_text_is_the_callers_fault_and_named(memory: int, types: bool) -> None:
    workers, written = [Quarantine(memory), Quarantine(memory)], QuarantineList(memory)
    for worker in workers:
        check(worker, "my card", types=types)
    written.hold([fingerprint("my card", types=types)], Verdict.GUILTY, 600)
    for worker in workers:
        # The same tokens in another spelling.
        with pytest.raises(BadInput, match=r"texts\[1\]: is quarantined for another (600|599) s: it ended a process"):
            check(worker, "where is my card", "my   card", types=types)
        check(worker, "where is my card", types=types)
        check(worker, "my card", release="tiny-4567", types=types)
        assert worker.guilty() == 1


def test_a_suspect_is_nobodys_fault_until_it_is_examined(memory: int) -> None:
    worker, written = Quarantine(memory), QuarantineList(memory)
    both = [fingerprint("my card"), fingerprint("slowly")]
    written.hold(both, Verdict.SUSPECT, 60)
    with pytest.raises(ReplicaUnavailable, match="is being examined"):
        check(worker, "my card")
    written.hold(both[1:], Verdict.GUILTY, 600)
    written.release(both)
    check(worker, "my card")
    with pytest.raises(BadInput):
        check(worker, "slowly")


def test_guilt_outlives_a_new_suspicion(memory: int) -> None:
    worker, written = Quarantine(memory), QuarantineList(memory)
    written.hold([fingerprint("slowly")], Verdict.GUILTY, 600)
    written.hold([fingerprint("slowly")], Verdict.SUSPECT, 60)
    written.release([fingerprint("slowly")])
    with pytest.raises(BadInput):
        check(worker, "slowly")


def test_it_ends_by_itself(memory: int) -> None:
    worker, written = Quarantine(memory), QuarantineList(memory)
    written.hold([fingerprint("slowly")], Verdict.GUILTY, 0.3)
    with pytest.raises(BadInput):
        check(worker, "slowly")
    # Nobody writes again: the worker itself knows when it is over.
    eventually(lambda: worker.guilty() == 0)
    check(worker, "slowly")


def test_the_oldest_leave_a_full_list(memory: int) -> None:
    worker, written = Quarantine(memory), QuarantineList(memory)
    written.hold([fingerprint("slowly")], Verdict.GUILTY, 600)
    written.hold([number.to_bytes(16) for number in range(CAPACITY - 1)], Verdict.GUILTY, 600)
    with pytest.raises(BadInput):
        check(worker, "slowly")
    written.hold([fingerprint("my card")], Verdict.GUILTY, 600)
    check(worker, "slowly")
    with pytest.raises(BadInput):
        check(worker, "my card")


def test_a_worker_that_reads_in_the_middle_of_a_write_goes_on_with_what_it_knows(memory: int) -> None:
    worker, written = Quarantine(memory), QuarantineList(memory)
    written.hold([fingerprint("slowly")], Verdict.GUILTY, 600)
    assert worker.guilty() == 1
    os.pwrite(memory, (3).to_bytes(8, "little") + bytes(4), 0)
    assert worker.guilty() == 1


def test_without_a_supervisor_nothing_is_refused() -> None:
    check(Quarantine(), "my card")
