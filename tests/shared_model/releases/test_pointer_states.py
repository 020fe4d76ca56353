"""Any order of changes, losses and damages: versions only grow, and what is read is the last change."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Store
from tests.properties import examples

IDS = [f"small-{digit * 12}" for digit in "abcd"]


class PointerMachine(RuleBasedStateMachine):
    """`last` is the last change; `in_redis` and `in_file` whether that twin still holds it. Never are both lost."""

    client: "redis.Redis"
    releases = Bundle("releases")

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self._folder.name))
        self.away = redis.Redis.from_url("redis://127.0.0.1:1", retry=None)
        self.last: Pointer | None = None
        self.in_redis = self.in_file = False

    def teardown(self) -> None:
        self._folder.cleanup()

    @initialize()
    def empty(self) -> None:
        self.client.flushall()

    @rule(release=st.sampled_from(IDS), redis_there=st.booleans())
    def promote(self, release: str, redis_there: bool) -> None:
        previous = ""
        if self.last:
            previous = self.last.previous if self.last.active == release else self.last.active
        self._change(
            lambda client: pointer.promote(self.store, client, release), redis_there, active=release, previous=previous
        )

    @precondition(lambda self: self.last is not None)
    @rule(release=st.sampled_from(IDS), weight=st.floats(0.001, 0.999), redis_there=st.booleans())
    def start_canary(self, release: str, weight: float, redis_there: bool) -> None:
        assert self.last
        if release == self.last.active:
            with pytest.raises(ReleaseError, match="active one already"):
                pointer.start_canary(self.store, self._client(redis_there), release, weight)
            return
        self._change(
            lambda client: pointer.start_canary(self.store, client, release, weight),
            redis_there,
            active=self.last.active,
            previous=self.last.previous,
            canary=release,
            weight=weight,
        )

    @precondition(lambda self: self.last is not None)
    @rule(redis_there=st.booleans())
    def rollback(self, redis_there: bool) -> None:
        assert self.last
        if self.last.canary:
            expected = {"active": self.last.active, "previous": self.last.previous}
        elif self.last.previous:
            expected = {"active": self.last.previous, "previous": ""}
        else:
            with pytest.raises(ReleaseError, match="nothing to roll back to"):
                pointer.rollback(self.store, self._client(redis_there))
            return
        self._change(lambda client: pointer.rollback(self.store, client), redis_there, **expected)

    @precondition(lambda self: self.in_file)
    @rule()
    def lose_redis(self) -> None:
        self.client.flushall()
        self.in_redis = False

    @precondition(lambda self: self.in_file)
    @rule(
        field=st.sampled_from(["version", "active", "weight"]), value=st.sampled_from(["", "x", "nan", "-1", "1e400"])
    )
    def damage_redis(self, field: str, value: str) -> None:
        self.client.hset(keys.release_pointer(), field, value)
        self.in_redis = False

    @precondition(lambda self: self.in_redis)
    @rule()
    def lose_file(self) -> None:
        self._file.unlink(missing_ok=True)
        self.in_file = False

    @precondition(lambda self: self.in_redis)
    @rule(contents=st.one_of(st.sampled_from([b"", b"{", b"[]", b"\0"]), st.binary(max_size=20)))
    def damage_file(self, contents: bytes) -> None:
        self._file.write_bytes(contents)
        self.in_file = False

    @invariant()
    def what_is_read_is_the_last_change(self) -> None:
        if self.last:
            assert pointer.read(self.store, self.client) == self.last
            if self.in_file:
                assert pointer.read(self.store, self.away) == self.last
        else:
            with pytest.raises(ReleaseError, match="no release is active"):
                pointer.read(self.store, self.client)

    @property
    def _file(self) -> Path:
        return Path(self._folder.name) / pointer.FILE

    def _client(self, there: bool) -> "redis.Redis":
        # Without Redis a change starts from the file, so it is only sound where that holds the last one.
        return self.client if there or not self.in_file else self.away

    def _change(self, change: Callable[["redis.Redis"], Pointer], redis_there: bool, **expected: object) -> None:
        client, before = self._client(redis_there), self.last.version if self.last else 0
        try:
            self.last = change(client)
            assert client is self.client
        except StoreUnavailable:
            assert client is self.away
            self.last = pointer.read(self.store, None)
        assert self.last.version > before
        assert self.last == Pointer(self.last.version, **expected)
        self.in_file, self.in_redis = True, client is self.client


@pytest.mark.hypothesis
def test_any_order_of_changes_losses_and_damages(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        machine = type("Machine", (PointerMachine,), {"client": client})
        quick = settings(max_examples=examples(40), stateful_step_count=25, suppress_health_check=list(HealthCheck))
        machine.TestCase.settings = quick
        result = machine.TestCase("runTest").run()
    assert result
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]
