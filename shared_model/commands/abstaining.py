"""The options of `build` by which answers abstain."""

import argparse

from shared_model.commands import by_head
from shared_model.errors import BadInput
from shared_model.evaluation.calibration import Abstain
from shared_model.heads import Heads

_BELOW, _PRECISION, _ON = "--abstain-below", "--abstain-precision", "--abstain-on"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        _BELOW,
        action="append",
        default=[],
        metavar="[HEAD=]P",
        help="mark answers of less confidence as abstained, such as 0.6 (default: none); again for further heads, each "
        "with its name",
    )
    parser.add_argument(
        _PRECISION,
        action="append",
        default=[],
        metavar="[HEAD=]SHARE",
        help="the same, with the least confidence from which on this share of answers to --eval is right (95 %% Wilson "
        "lower bound), such as 0.95 (default: none)",
    )
    parser.add_argument(
        _ON,
        action="append",
        default=[],
        metavar="[HEAD=]LABELS",
        help="mark answers with such a label as abstained, such as out_of_scope|other (default: none)",
    )


def chosen(args: argparse.Namespace, heads: Heads) -> dict[str, Abstain]:
    """When the answers of the heads that are named abstain, by name. Raises: BadInput."""
    below, precision = (
        {name: _share(option, text, heads) for name, text in by_head.parse(option, given, heads).items()}
        for option, given in ((_BELOW, args.abstain_below), (_PRECISION, args.abstain_precision))
    )
    if both := sorted({*below} & {*precision}):
        raise BadInput(_BELOW, f"and {_PRECISION} are both given for the head {both[0]}; choose one")
    on = by_head.parse(_ON, args.abstain_on, heads)
    return {
        name: Abstain(below.get(name), precision.get(name), tuple(on[name].split("|")) if name in on else ())
        for name in sorted({*below, *precision, *on})
    }


def _share(option: str, text: str, heads: Heads) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        names = ", ".join(spec.name for spec in heads.specs)
        raise BadInput(option, f"{text} is not a share above 0 and at most 1, nor HEAD=SHARE; the heads are {names}")
    return value
