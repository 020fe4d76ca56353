"""python -m shared_model: build, look at, sign, promote and remove releases; keys, certificates, audit; demo messages.

Exit status: 1 if the gate refuses a release, 2 for a wrong argument, setting or file, 3 if Redis was not reached. Those
of `watch` are in its help.
"""

import argparse
import os
import sys

from shared_model import settings, startup
from shared_model.commands import (
    certificates,
    inspect_release,
    list_releases,
    make_release,
    messages,
    promote,
    sign,
    train_head,
    trust,
    watch,
)
from shared_model.errors import StoreUnavailable, TandemError
from shared_model.settings import StateSettings


def main(arguments: list[str] | None = None) -> int:
    startup.begin()
    args = parser().parse_args(arguments)
    try:
        state = settings.load(StateSettings)
        startup.warn_of_open_state(state.state)
        status = int(args.run(args, state) or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, `head` for example, has closed the pipe; Python must not flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TandemError, OSError) as error:
        line = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            line = f"{error.filename}: {error.strerror}"
        print(f"shared_model {args.command}: {line}", file=sys.stderr)
        return 3 if isinstance(error, StoreUnavailable) else 2
    return status


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m shared_model", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    own = (make_release, train_head, list_releases, inspect_release, promote, watch)
    for subject in (*own, sign, trust, certificates, messages):
        subject.add_to(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
