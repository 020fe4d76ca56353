"""Nothing in the tree loads code from data: no pickle in any of its disguises, no `torch.load`, no `eval`."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[3]

#: Modules that unpickle, or exist to.
BANNED_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
#: Calls that unpickle, or run what they are given.
BANNED_CALLS = {"torch.load", "torch.save", "numpy.load", "np.load", "pd.read_pickle", "eval", "exec"}


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [REPOSITORY / line for line in listed.stdout.splitlines() if (REPOSITORY / line).exists()]


def offences(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                imported = [name.name for name in names]
            case ast.ImportFrom(module=str(module)):
                imported = [module]
            case ast.Call(func=function) if ast.unparse(function) in BANNED_CALLS:
                yield f"line {node.lineno}: {ast.unparse(function)}()"
                continue
            case _:
                continue
        yield from (f"line {node.lineno}: {name}" for name in imported if name.split(".")[0] in BANNED_MODULES)


def test_the_tree_unpickles_nothing() -> None:
    found = {str(path): list(offences(path.read_text())) for path in sources()}
    assert len(found) > 50
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, cloudpickle as c",
        "from joblib import load",
        "def f():\n    from pickle import loads",
        "import torch\ntorch.load('x')",
        "eval(input())",
    ],
)
def test_the_search_finds_them(source: str) -> None:
    assert list(offences(source))


def test_nothing_committed_is_a_pickle() -> None:
    """Protocol 2 and later begin with 0x80; zipped torch checkpoints with PK."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        path = REPOSITORY / name
        if path.is_file():
            with path.open("rb") as file:
                assert file.read(2) not in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"), name
