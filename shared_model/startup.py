"""The first acts of every program of Tandem: files for its user alone, and warnings about its surroundings."""

import stat
import sys
from pathlib import Path

from shared_model import storage, variables


def begin() -> None:
    """To be called before the program writes anything or starts a process, which inherits the rights of new files."""
    storage.keep_private()
    variables.warn()


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
