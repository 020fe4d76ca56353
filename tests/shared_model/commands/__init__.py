from collections.abc import Callable

#: Runs a command; returns its exit status, what it printed, and what it complained about.
Run = Callable[..., tuple[int, str, str]]
