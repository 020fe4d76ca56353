"""Fleets, and the measured figures of the proofs at the end of a run."""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.serving.fleet import Fleet, fleet

Measured = Callable[[str, float, str], None]

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet of this module's own, because parts of it will be killed."""
    with fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(scope="package")
def sleeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, float]]:
    """A fleet whose replica sleeps, for tests that kill none, and the calls a second that it can answer. The result
    does not depend on the machine. A test ends its own routers."""
    with fleet(tmp_path_factory.mktemp("sleeping")) as running:
        yield running, running.sleeping_replica().opened["capacity"]


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Reports a figure: its name, its value and its promised bound."""

    def note(name: str, value: float, promise: str) -> None:
        request.config.stash.setdefault(_FIGURES, []).append(f"{name}: {value:.4g} ({promise})")

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(_FIGURES, []):
        terminalreporter.write_line(line)
