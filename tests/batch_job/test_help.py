"""Every step explains itself: what it does, each argument, exit codes and one example."""

import argparse
import re

import pytest

from batch_job.checks.gate import ACCEPTABLE
from batch_job.command_line import parser

NAMES = ["plan", "score", "judge", "commit", "reject"]
NAMES += ["drain", "publish", "rollback", "report", "read", "runs", "quarantine", "drift", "housekeeping"]


def steps() -> dict[str, argparse.ArgumentParser]:
    [action] = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(action.choices)


def test_every_step_is_looked_at() -> None:
    assert list(steps()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_step_describes_itself_its_arguments_and_its_exit_codes(name: str) -> None:
    step = steps()[name]
    assert step.description
    assert len(step.description.split()) > 12
    for action in step._actions:
        assert action.help, f"{name} {action.option_strings}"
        if not action.required and action.dest not in ("help", "record") and action.help != argparse.SUPPRESS:
            assert "default: " in action.help, f"{name} {action.option_strings}"
    assert step.epilog
    assert re.search(
        "^exit codes: 0 done; .*2 input.*; 70 an unexpected error; 75 Redis or the store does .*$",
        step.epilog,
        re.MULTILINE,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_step_is_one_that_it_takes(name: str) -> None:
    step = steps()[name]
    assert step.epilog
    example = re.search(rf"example: +python -m batch_job ({name}(?: .+)?)$", step.epilog)
    assert example
    assert parser().parse_args(example[1].split()).step == name


def test_every_gate_that_may_be_accepted_is_explained() -> None:
    [accept] = [action for action in steps()["score"]._actions if action.dest == "accept"]
    assert accept.help
    assert [gate for gate in ACCEPTABLE if f"{gate}: " not in accept.help] == []


@pytest.mark.parametrize("flag", ["--force", "--publish"])
def test_the_old_name_of_force_still_works_and_is_not_shown(flag: str) -> None:
    assert parser().parse_args(["publish", "--ds", "2026-01-14", flag]).force
    assert "--publish" not in steps()["publish"].format_help()
