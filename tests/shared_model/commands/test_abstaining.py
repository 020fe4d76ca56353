"""The options by which the answers of each head abstain."""

import argparse

import pytest

from shared_model.commands import abstaining
from shared_model.errors import BadInput
from shared_model.evaluation.calibration import Abstain
from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec

HEADS = Heads.of(
    OutputSpec(OutputKind.SINGLE_LABEL, ("a=b", "none"), 2),
    "intent",
    [HeadSpec("mood", OutputSpec(OutputKind.MULTI_LABEL, ("sad",), 1))],
)


def chosen(*arguments: str) -> dict[str, Abstain]:
    parser = argparse.ArgumentParser()
    abstaining.add_options(parser)
    return abstaining.chosen(parser.parse_args(arguments), HEADS)


def test_an_option_names_its_head_or_is_of_the_first() -> None:
    assert chosen() == {}
    assert chosen("--abstain-below", "mood=0.6", "--abstain-precision", "0.95", "--abstain-on", "none|other") == {
        "intent": Abstain(precision=0.95, on=("none", "other")),
        "mood": Abstain(below=0.6),
    }
    assert chosen("--abstain-on", "a=b") == {"intent": Abstain(on=("a=b",))}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--abstain-below", "moood=0.6"], "--abstain-below: moood=0.6 is not a share .*; the heads are intent, mood"),
        (["--abstain-below", "1.5"], "--abstain-below: 1.5 is not a share above 0 and at most 1"),
        (["--abstain-precision", "nan"], "--abstain-precision: nan is not a share"),
        (["--abstain-below", "0.5", "--abstain-below", "intent=0.6"], "is given twice for the head intent"),
        (["--abstain-below", "mood=0.5", "--abstain-precision", "mood=0.9"], "both given for the head mood; choose"),
    ],
)
def test_an_option_that_cannot_be_is_refused(arguments: list[str], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        chosen(*arguments)
