"""The first acts of every program of Tandem: files for its user alone, and warnings about its surroundings."""

import stat
import sys
from pathlib import Path
from types import TracebackType

from shared_model import storage, variables


def begin() -> None:
    """To be called before the program writes anything or starts a process, which inherits the rights of new files."""
    sys.excepthook = one_line_for_ctrl_c
    storage.keep_private()
    variables.warn()


def one_line_for_ctrl_c(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Of an exception that nothing has caught. Python ends after an interrupt as one that SIGINT has killed."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)


def warn_of_open_state(state: Path) -> None:
    """Write a line if others may look into the state folder: one that was there before keeps its rights."""
    try:
        mode = stat.S_IMODE(state.stat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        sys.stderr.write(
            f"warning: TANDEM_STATE={state}: other users may open it (mode {mode:03o}), and it holds texts and keys; "
            f"chmod 700 {state}\n"
        )
