"""`--help` of every command says what it does and what each argument means; usage errors print usage."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared_model.__main__ import main, parser
from shared_model.releases.store import Release, Store
from tests.shared_model.small_release import passed

REPOSITORY = Path(__file__).parents[3]


def leaves(found: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers without commands of their own."""
    groups = [action for action in found._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for command in group.choices.values():
            yield from leaves(command)
    if not groups:
        yield found


@pytest.mark.parametrize("leaf", list(leaves(parser())), ids=lambda leaf: leaf.prog.rpartition(" ")[2])
def test_every_command_explains_itself_and_its_arguments(leaf: argparse.ArgumentParser) -> None:
    assert leaf.description
    assert leaf.epilog
    assert leaf.epilog.startswith(f"example: {leaf.prog}")
    given = leaf.epilog.removeprefix(f"example: {leaf.prog}").split()
    leaf.parse_args(given)  # exits where the example is wrong
    for action in leaf._actions:
        assert action.help, action.dest
        takes_a_value = action.nargs != 0 and not action.required
        assert not takes_a_value or "default" in action.help, action.dest
    assert all(len(line) <= 120 for line in leaf.format_help().splitlines())


def test_without_a_command_usage_is_printed_and_nothing_is_built(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m shared_model ")
    assert not (place / "releases").exists()


def test_a_reader_that_has_enough_is_no_error(place: Path, store: Store, redis_url: str) -> None:
    """`list | head -0`: its reader is gone before the first line."""
    for number in range(3):
        passed(store, f"release{number}")
    receiving, sending = os.pipe()
    os.close(receiving)
    environment = {**os.environ, "TANDEM_STATE": str(place), "TANDEM_REDIS_URL": redis_url}
    command = [sys.executable, "-m", "shared_model", "list"]
    ran = subprocess.run(
        command, cwd=REPOSITORY, env=environment, stdout=sending, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(sending)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_gate_takes_its_release_either_way(one: Release) -> None:
    assert parser().parse_args(["gate", "one"]).release == "one"
    assert parser().parse_args(["gate", "--release", "one"]).named == "one"
