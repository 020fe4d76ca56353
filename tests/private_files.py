"""Which files of a state other users could read."""

import stat
from pathlib import Path


def open_to_others(state: Path) -> list[str]:
    """Paths of files and folders that give a group or others any right."""
    found = [state, *state.rglob("*")]
    return [str(it) for it in found if not it.is_symlink() and stat.S_IMODE(it.stat().st_mode) & 0o077]
