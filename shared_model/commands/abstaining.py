"""The options of `build` by which answers abstain."""

import argparse

from shared_model.evaluation.calibration import Abstain


def add_options(parser: argparse.ArgumentParser) -> None:
    options = parser.add_mutually_exclusive_group()
    options.add_argument(
        "--abstain-below",
        type=_share,
        metavar="P",
        help="mark answers of less confidence as abstained, such as 0.6 (default: none)",
    )
    options.add_argument(
        "--abstain-precision",
        type=_share,
        metavar="SHARE",
        help="the same, with the least confidence from which on this share of answers to --eval is right (95 %% Wilson "
        "lower bound), such as 0.95 (default: none)",
    )


def chosen(args: argparse.Namespace) -> Abstain:
    return Abstain(args.abstain_below, args.abstain_precision)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share above 0 and at most 1")
    return value
