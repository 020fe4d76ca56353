"""`python -m realtime_service`: the help of every command, wrong arguments, the output of `call` and `describe`."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from realtime_service.__main__ import _parser, main
from realtime_service.cli import printing
from realtime_service.client import Client
from tests.realtime_service.conftest import RunningService, eventually

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    service: RunningService, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs a command in this process, on the Redis of the service, and restores the policy afterwards."""
    monkeypatch.setenv("TANDEM_REDIS_URL", redis_url)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main([*arguments])
        return status, *capsys.readouterr()

    yield run
    with Client(service.address) as client:
        run("policy", "reset", "--all")
        eventually(lambda: not client.describe().operators_policy)


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All commands without subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for command in action.choices.values():
            yield from leaves(command)


@pytest.mark.parametrize(
    "command", list(leaves(_parser())), ids=lambda command: command.prog.removeprefix("python -m ")
)
def test_every_command_describes_itself_its_arguments_and_an_example(command: argparse.ArgumentParser) -> None:
    assert len(command.description or "") > 20
    assert [action.dest for action in command._actions if len(action.help or "") < 5] == []
    assert command.epilog
    example = re.fullmatch(r"example:\n  python -m realtime_service (.+)", command.epilog)
    assert example
    words = [re.sub('"', "", word) for word in re.findall(r'"[^"]*"|\S+', example[1])]
    assert _parser().parse_args(words).run is command.get_default("run")
    command.format_help()


@pytest.mark.parametrize("command", ["call text", "chat"])
@pytest.mark.parametrize("wrong", ["0", "-5"])
def test_a_timeout_must_be_positive(command: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--timeout-ms", wrong])
    assert ended.value.code == 2
    assert f"--timeout-ms: is {wrong}, must be positive" in capsys.readouterr().err


def test_an_unknown_lane_is_told_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["call", "text", "--lane", "express"])
    assert ended.value.code == 2
    assert "(choose from 'latency', 'dynamic', 'throughput')" in capsys.readouterr().err


def test_a_reset_without_names_says_what_it_expects(run: Run) -> None:
    status, printed, complaint = run("policy", "reset")
    assert (status, printed, complaint.count("\n")) == (2, "", 1)
    assert "name the numbers to reset (`policy show` lists them), or give --all for every one" in complaint


def test_a_reader_that_closes_the_pipe_early_is_no_error(service: RunningService, redis_url: str) -> None:
    pipe = f"{sys.executable} -m realtime_service {{}} | head -n 1"
    for command in ("policy show", f"describe --address {service.address}"):
        ended = subprocess.run(
            ["bash", "-c", f"set -o pipefail; TANDEM_REDIS_URL={redis_url} {pipe.format(command)}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), command


def test_a_closed_pipe_is_no_error(service: RunningService) -> None:
    """The pipe is closed before the first byte."""
    command = [sys.executable, "-m", "realtime_service", "describe", "--address", service.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert (process.stderr.read(), process.wait(timeout=60)) == ("", 0)
    process.stderr.close()


def test_call_takes_a_caller_a_lane_and_a_release_and_prints_json(run: Run, service: RunningService) -> None:
    with Client(service.address) as client:
        release = client.describe().release
    options = ["--caller", "bot-7", "--lane", "throughput", "--release", release, "--json"]
    status, printed, _ = run("call", "my card has not arrived", "--address", service.address, *options)
    answer = json.loads(printed)
    assert (status, answer["path"], answer["release"]) == (0, "throughput", release)
    assert answer["reason"] == "lane named by the caller"
    assert answer["results"][0]["labels"][0]["name"] == "card_arrival"
    status, _, complaint = run(
        "call", "my card has not arrived", "--address", service.address, "--release", "no-such-release"
    )
    assert (status, complaint.count("\n")) == (1, 1)
    assert "no-such-release" in complaint


def test_call_and_describe_show_the_policy_of_the_operators(run: Run, service: RunningService) -> None:
    call = ["call", "where is my card", "--timeout-ms", "20000", "--address", service.address]
    describe = ["describe", "--address", service.address]
    assert "operators' policy" not in run(*call)[1]
    assert "operators have set nothing" in run(*describe)[1]
    assert run("policy", "show", "--brief") == (0, "", "")
    run("policy", "set", "throughput_above_ms=5000", "quota.back-office=500")
    line = "operators' policy in force: quota.back-office=500 throughput_above_ms=5000 (`policy reset --all` undoes it)"
    assert run("policy", "show", "--brief") == (0, f"{line}\n", "")
    eventually(lambda: line in run(*describe)[1])
    printed = run(*call)[1]
    assert f"\n  {line}\n" in printed
    assert "throughput path (timeout above 5000 ms by the operators' policy)" in printed


def test_describe_is_a_page_and_json_for_programs(run: Run, service: RunningService) -> None:
    with Client(service.address) as client:
        eventually(lambda: client.describe().replicas)
        described = client.describe()
    status, page, _ = run("describe", "--address", service.address)
    assert status == 0
    assert page.startswith(f"release    {described.release}\nreads      texts of up to {described.max_tokens} tokens\n")
    assert ", … (77 in all)\n" in page
    # A busy host may be slow.
    assert re.search(r"^  latency +serving +int8 on cpu, .*, target: p95 50 ms, 50 requests/s(, slow.*)?$", page, re.M)
    assert re.search(r"^  dynamic .*, target: none(, slow.*)?$", page, re.M)
    assert f"  {described.release}  active, answers 1 of the callers\n" in page
    assert f"{described.replicas[0].address}  in service  {described.release}\n" in page
    assert max(map(len, page.splitlines())) <= 160
    told: dict[str, Any] = {}

    def is_told() -> bool:
        """Lanes may be timed between two looks."""
        told.clear()
        told.update(json.loads(run("describe", "--address", service.address, "--json")[1]))
        return told == printing.description_data(client.describe())

    with Client(service.address) as client:
        eventually(is_told)
    assert (len(told["labels"]), told["lanes"][0]["serving"], told["operators_policy"]) == (77, True, {})
