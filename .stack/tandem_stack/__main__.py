"""python -m tandem_stack demo|up, in the runtime environment that `python -m tandem_stack.environments` made."""

import argparse
import sys

from shared_model import startup
from shared_model.errors import TandemError
from tandem_stack import demo, up
from tandem_stack.checks import Problem
from tandem_stack.progress import complain

_COMMANDS = {"demo": demo.run, "up": up.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tandem_stack", description=__doc__)
    parser.add_argument("command", choices=_COMMANDS)
    startup.begin()
    command = parser.parse_args().command
    try:
        return _COMMANDS[command]()
    except (Problem, TandemError) as error:
        complain(f"{command}: {error}")
        return 2
    except KeyboardInterrupt:
        complain(f"{command}: interrupted; everything it started is stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
