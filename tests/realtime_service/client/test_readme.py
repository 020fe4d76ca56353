"""The clients' examples in README and in the package's README run, and print what they should."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

from realtime_service.client import DeadlineExceeded, Overloaded
from tests.realtime_service.conftest import RunningService, eventually

REPOSITORY = Path(__file__).parents[3]
PAGES = (REPOSITORY / "README.md", REPOSITORY / "realtime_service" / "README.md")
SHOWN = "127.0.0.1:50051"


def blocks() -> list[str]:
    pages = "\n".join(page.read_text() for page in PAGES)
    found = re.findall(r"^```python\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    return [block for block in found if "realtime_service.client" in block]


def test_both_clients_are_shown() -> None:
    threads, loop = blocks()
    assert "with Client(" in threads
    assert "async with AsyncClient(" in loop


@pytest.mark.parametrize("block", blocks(), ids=["threads", "loop"])
def test_an_example_runs(block: str, service: RunningService, tmp_path: Path) -> None:
    assert SHOWN in block
    program = tmp_path / "shown.py"
    program.write_text(block.replace(SHOWN, service.address))

    def runs() -> bool:
        """A busy machine may refuse what it cannot answer in the milliseconds that are shown."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(Overloaded, DeadlineExceeded):
            runpy.run_path(str(program), run_name="__main__")
        return "card_arrival" in said.getvalue()

    eventually(runs)
