"""python -m shared_model: build, look at, sign, promote and remove releases; write demo messages.

Exit status: 1 for a release that its gate refuses, 2 for what is wrong with a call, a setting or a file, 3 where Redis
was not reached.
"""

import argparse
import os
import sys

from shared_model import settings, variables
from shared_model.commands import inspect_release, list_releases, make_release, messages, promote, sign
from shared_model.errors import StoreUnavailable, TandemError
from shared_model.settings import StateSettings


def main(arguments: list[str] | None = None) -> int:
    variables.warn()
    args = parser().parse_args(arguments)
    try:
        status = int(args.run(args, settings.load(StateSettings)) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our lines, `head` for one, has had enough; Python must not write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TandemError, OSError) as error:
        print(f"shared_model {args.command}: {_in_one_line(error)}", file=sys.stderr)
        return 3 if isinstance(error, StoreUnavailable) else 2
    return status


def _in_one_line(error: Exception) -> str:
    """An OSError names the file and what is wrong with it: missing, not ours to read, disk full."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m shared_model", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    for subject in (make_release, list_releases, inspect_release, promote, sign, messages):
        subject.add_to(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
