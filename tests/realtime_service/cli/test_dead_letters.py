"""python -m realtime_service dead-letters: lists dead letters, and accepts them again."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreRequest
from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service import __main__ as command
from shared_model.deferred import DeferredQueue, State
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.trust import audit, keyring
from shared_model.trust.ed25519 import key_id

Cli = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server without a backfill worker."""
    with RedisServer(StateSettings(state=tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture
def redis_url(own_redis: RedisServer) -> str:
    """That server, emptied for this test."""
    with redis.Redis.from_url(own_redis.url) as client:
        client.flushall()
    return own_redis.url


@pytest.fixture
def cli(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process; returns its status, printed lines and error."""
    monkeypatch.setenv("TANDEM_REDIS_URL", redis_url)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        status = command.main(["dead-letters", *arguments])
        printed = capsys.readouterr()
        return status, printed.out.splitlines(), printed.err

    return run


def with_handoff(url: str, request_ids: tuple[str, ...], dead_letter: bool) -> list[State | None]:
    async def run() -> list[State | None]:
        async with redis.asyncio.Redis.from_url(url) as client:
            deferred_queue = DeferredQueue(client)
            for request_id in request_ids if dead_letter else ():
                await deferred_queue.submit(request_id, DeferredWork(request=ScoreRequest(texts=["a", "b"])))
                for _ in range(3):
                    await deferred_queue.claim("dies", 1, lease_seconds=0.0)
            return await deferred_queue.states(request_ids)

    return asyncio.run(run())


def dead_letter(url: str, *request_ids: str) -> None:
    assert set(with_handoff(url, request_ids, dead_letter=True)) == {State.FAILED}


def states(url: str, *request_ids: str) -> list[State | None]:
    return with_handoff(url, request_ids, dead_letter=False)


def test_without_any_there_are_none(cli: Cli) -> None:
    assert cli("list") == (0, ["0 dead letters"], "")
    assert cli("replay", "--all") == (0, ["0 accepted again"], "")


def test_they_are_listed_oldest_first(cli: Cli, redis_url: str) -> None:
    dead_letter(redis_url, "one", "two", "three")
    status, lines, _ = cli("list", "--count", "2")
    assert status == 0
    assert [line.split("\t")[0] for line in lines] == ["one", "two", "3 dead letters"]
    assert lines[0].endswith("2 texts\ttaken 2 times")


def test_an_id_that_would_forge_lines_is_printed_escaped(cli: Cli, redis_url: str) -> None:
    dead_letter(redis_url, "one\nCRITICAL \x1b[2J")
    assert cli("list")[1][0].startswith(r"one\nCRITICAL \x1b[2J" + "\t")


def test_some_or_all_are_accepted_again(cli: Cli, redis_url: str) -> None:
    dead_letter(redis_url, "one", "two", "three")
    assert cli("replay", "one", "three") == (0, ["2 accepted again"], "")
    assert states(redis_url, "one", "two", "three") == [State.ACCEPTED, State.FAILED, State.ACCEPTED]
    assert cli("replay", "--all")[1] == ["1 accepted again"]
    assert cli("list")[1] == ["0 dead letters"]


def test_the_owner_of_a_letter_is_shown_and_names_it(cli: Cli, redis_url: str) -> None:
    mine = ("token:alice/one", "token:bob/one")
    dead_letter(redis_url, *mine)
    assert [line.split("\t")[0] for line in cli("list")[1]] == [*mine, "2 dead letters"]
    assert cli("replay", "token:bob/one") == (0, ["1 accepted again"], "")
    assert states(redis_url, *mine) == [State.FAILED, State.ACCEPTED]


@pytest.fixture
def keys_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of an operator."""
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    keyring.make(tmp_path / "keys", cluster=False, operator=True)
    return tmp_path / "keys"


def test_a_replay_is_recorded_and_signed(
    cli: Cli, redis_url: str, keys_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead_letter(redis_url, "one", "two")
    assert cli("replay", "--all")[1] == ["2 accepted again"]
    (logged,) = caplog.messages
    with redis.Redis.from_url(redis_url) as client:
        keys = keyring.load(StateSettings(state=keys_dir.parent, redis_url=redis_url))
        (line,) = audit.lines(client, keys)
    assert line in f"{logged.removeprefix('audit: ').partition(', key')[0]}  [signed by {key_id(keys.operators[0])}]"
    assert "  dead-letters replay  by " in line
    assert ": 2 dead letters: one, two -> accepted  [signed by " in line


def test_without_the_operators_key_no_dead_letter_is_accepted(cli: Cli, redis_url: str, keys_dir: Path) -> None:
    (keys_dir / keyring.OPERATOR).unlink()
    dead_letter(redis_url, "one")
    status, lines, complaint = cli("replay", "one")
    assert (status, lines) == (2, [])
    refusal = f"realtime_service dead-letters: {keys_dir} has no operator.key, and operators.pub wants an operator's"
    assert complaint.startswith(refusal)
    assert complaint.count("\n") == 1
    assert states(redis_url, "one") == [State.FAILED]
    # Reading needs no key.
    assert cli("list")[1][-1] == "1 dead letters"


def test_an_unknown_id_is_named_and_nothing_is_replayed(cli: Cli, redis_url: str) -> None:
    dead_letter(redis_url, "one")
    status, lines, complaint = cli("replay", "one", "never")
    assert (status, lines) == (2, [])
    assert complaint == "realtime_service dead-letters: ID: 'never': no such dead letter; `list` names them\n"
    assert states(redis_url, "one") == [State.FAILED]


@pytest.mark.parametrize("arguments", [["replay"], ["replay", "--all", "one"], []])
def test_replay_needs_ids_or_all(cli: Cli, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        cli(*arguments)
    assert refused.value.code == 2


def test_without_redis_it_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_REDIS_URL", "redis://127.0.0.1:1")
    status, _, complaint = cli("list")
    assert (status, complaint[:50]) == (2, "realtime_service dead-letters: Redis did not answe")


def test_the_command_loads_no_framework(redis_url: str) -> None:
    """A command for people must start fast."""
    source = (
        "import sys; from realtime_service.__main__ import main; main(['dead-letters', 'list']); "
        "print({'torch', 'openvino', 'transformers', 'numpy'} & set(sys.modules))"
    )
    environment = {**os.environ, "TANDEM_REDIS_URL": redis_url}
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout.splitlines() == ["0 dead letters", "set()"]
