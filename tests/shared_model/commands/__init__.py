import re
from collections.abc import Callable

#: Runs a command; returns its exit status, what it printed, and what it complained about.
Run = Callable[..., tuple[int, str, str]]


def listed(printed: str) -> list[str]:
    """The lines of `list` without dates and sizes, single-spaced."""
    lines = (re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d +\d+\.\d MB", "", line) for line in printed.splitlines())
    return [re.sub(" +", " ", line).strip() for line in lines]
