"""python -m shared_model: build, look at, sign and promote releases; write demo messages.

Without a command it builds the default release. Exit status: 1 for a release that its gate refuses, 2 for what is wrong
with a call, a setting or a file, 3 where Redis was not reached.
"""

import argparse
import sys

from shared_model import settings
from shared_model.commands import building, messages, promotion, releases, signing
from shared_model.errors import StoreUnavailable, TandemError
from shared_model.settings import StateSettings


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    args = _parser().parse_args(given or ["build"])
    try:
        return int(args.run(args, settings.load(StateSettings)) or 0)
    except (TandemError, OSError) as error:
        # An OSError names the file and what is wrong with it: missing, not ours to read, disk full.
        print(f"shared_model {args.command}: {error}", file=sys.stderr)
        return 3 if isinstance(error, StoreUnavailable) else 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shared_model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for subject in (building, releases, signing, promotion, messages):
        subject.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
