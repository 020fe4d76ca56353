"""README is tried as a newcomer would: a fresh clone, a clean shell, each fenced block as it is written.

`make readme` runs it. `CLONE=DIR make readme` uses a clone that exists, brought to this commit, and spares the set-up.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import reader_files
from tests.docs.readme_blocks import Block, blocks, clean_environment, run_console, run_python

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
BLOCKS = blocks(README)

#: Commands of README that are not run here, and why. None of them needs a cluster.
NOT_RUN = {
    "make test": "it is the suite that this test is part of",
    "make up": "it runs in the background of all later blocks",
}
#: A console block is run, a Python block is a program, a text is a picture.
LANGUAGES = {"console", "python", "text"}
_UP_SECONDS = 300.0


def test_every_block_says_what_it_is() -> None:
    assert len(BLOCKS) > 10
    assert {block.language for block in BLOCKS} == LANGUAGES


def test_commands_that_are_not_run_are_shown() -> None:
    shown = [command.text for block in BLOCKS if block.language == "console" for command in block.commands]
    assert [it for it in NOT_RUN if not any(text.startswith(it) for text in shown)] == []


def test_a_command_is_read_with_its_input_and_output() -> None:
    [block] = blocks("text\n\n```console\n$ one \\\n    two\nsaid 0.84 …\n$ chat\nyou> hello\nfine 3 %\n```\n")
    one, chat = block.commands
    assert (block.line, one.text, one.shown) == (3, "one \\\n    two", ("said 0.84 …",))
    assert (chat.typed, chat.shown) == (("hello",), ("fine 3 %",))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("false", "`false`"),
        ("echo 7 of 8\nsaid", "does not print"),
        ("exit 3", "`exit 3`"),
        ("cat /no/file", "No such"),
    ],
)
def test_control_a_block_that_fails_is_found(command: str, why: str, tmp_path: Path) -> None:
    [block] = blocks(f"```console\n$ {command}\n```\n")
    with pytest.raises(AssertionError, match=why):
        run_console(block, tmp_path, tmp_path / "run", ())


def test_a_block_whose_figures_differ_passes(tmp_path: Path) -> None:
    [block] = blocks("```console\n$ export A=12 # why\n$ echo card 0.9$A by minilm-41\ncard 0.84 by minilm-…\n```\n")
    run_console(block, tmp_path, tmp_path / "run", ())


def test_a_clean_shell_knows_no_setting_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_STATE", "/somewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    monkeypatch.setenv("PATH", f"/usr/bin:{REPOSITORY}/.venv/bin")
    environment = clean_environment(REPOSITORY)
    assert environment["PATH"] == "/usr/bin"
    assert not [name for name in environment if name.startswith(("TANDEM", "VIRTUAL", "PYTHON", "REDIS"))]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A clone of this commit with a reader's own files in it. Its environments are made by README's first block."""
    if given := os.environ.get("CLONE"):
        folder = Path(given)
        subprocess.run(["git", "pull", "-q", "--ff-only", str(REPOSITORY), "HEAD"], cwd=folder, check=True)
    else:
        folder = tmp_path_factory.mktemp("readme") / "tandem"
        subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(folder)], check=True)
    reader_files.write(folder)
    yield folder
    if not given:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def up(clone: Path) -> Iterator[None]:
    """`make up`, from its first use on. It has stopped by itself after Ctrl-C, or the test fails."""
    output = clone / ".tandem" / "readme-up"
    output.parent.mkdir(exist_ok=True)
    with open(output, "wb") as file:
        process = subprocess.Popen(
            ["make", "up"], cwd=clone, env=clean_environment(clone), stdout=file, stderr=file, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _UP_SECONDS
        while "Ctrl-C stops everything" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.5)
        yield
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
        assert "stopped; nothing is left running" in output.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _needs_up(block: Block) -> bool:
    return block.line > README.count("\n", 0, README.index("$ make up")) + 1


@pytest.mark.readme
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "block", [it for it in BLOCKS if it.language != "text"], ids=lambda block: f"line-{block.line}"
)
def test_a_block_runs_as_written(block: Block, clone: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if _needs_up(block):
        request.getfixturevalue("up")
    if block.language == "python":
        run_python(block, clone, tmp_path / "run")
    else:
        run_console(block, clone, tmp_path / "run", list(NOT_RUN))
