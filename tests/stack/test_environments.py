"""An environment is what its lock file says, or it is made again. Real virtual environments, nothing downloaded."""

import hashlib
import re
import zipfile
from pathlib import Path

import pytest
from tandem_stack import environments
from tandem_stack.checks import Problem
from tandem_stack.environments import Environment, Installer
from tandem_stack.uv import Uv

from tests.stack.helpers import REPOSITORY, only_line, write_script

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    root = tmp_path_factory.mktemp("root")
    (root / "tiny.lock").write_text("# nothing\n")
    made = Environment("tiny", root, root / "venv", root / "tiny.lock", project=False)
    environments.ensure([made], root / "logs")
    return made


def ensure(environment: Environment) -> None:
    environments.ensure([environment], environment.root / "logs")


def test_a_finished_environment_is_left_alone(environment: Environment) -> None:
    before = environment.stamp_file.stat().st_mtime_ns

    ensure(environment)

    assert environment.is_ready()
    assert environment.stamp_file.stat().st_mtime_ns == before


def test_set_up_compiles_what_it_installs() -> None:
    """Also modules that nothing here imports. A few files are templates, which are no Python."""
    for made in environments.environments():
        sources = sum(1 for _ in made.prefix.glob("lib/**/*.py"))
        assert sum(1 for _ in made.prefix.glob("lib/**/*.pyc")) > 0.95 * sources > 1_000


def test_an_interrupted_installation_starts_from_nothing(environment: Environment) -> None:
    environment.stamp_file.unlink()
    (environment.prefix / "half-installed").touch()

    ensure(environment)

    assert environment.is_ready()
    assert not (environment.prefix / "half-installed").exists()


def test_another_lock_file_is_followed_in_place(environment: Environment) -> None:
    (environment.prefix / "kept").touch()
    environment.lock_file.write_text("# nothing, said differently\n")
    assert not environment.is_ready()

    ensure(environment)

    assert environment.is_ready()
    assert (environment.prefix / "kept").exists()


def test_a_failed_installation_is_one_line_and_leaves_no_stamp(environment: Environment) -> None:
    environment.lock_file.write_text("--no-index\nno-such-package==1.0\n")

    with pytest.raises(Problem) as problem:
        ensure(environment)

    line = only_line(str(problem.value))
    assert line.startswith(
        "tiny environment: No solution found when resolving dependencies: Because no-such-package was"
    )
    assert "install-tiny.log" in line
    assert not environment.stamp_file.exists()


def test_what_does_not_fit_on_the_disk_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / "large.lock").write_text("# nothing\n")
    large = Environment("large", tmp_path, tmp_path / "venv", tmp_path / "large.lock", project=False, disk_bytes=10**18)

    with pytest.raises(Problem, match=r"GB free, 1000000000\.0 GB needed"):
        ensure(large)

    assert not large.prefix.exists()


def test_a_linked_environment_is_never_changed(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "in-use").touch()
    (tmp_path / "tiny.lock").write_text("# nothing\n")
    linked = Environment("tiny", tmp_path, tmp_path / "venv", tmp_path / "tiny.lock", project=False)
    linked.prefix.symlink_to(used)

    with pytest.raises(Problem, match=f"venv is a link to {used}"):
        ensure(linked)

    assert [path.name for path in used.iterdir()] == ["in-use"]


@pytest.mark.parametrize(
    ("offers", "cpu_index", "own_index", "driver", "taken", "line"),
    [
        ("2.13.0+cpu", "", False, False, (), "torch==2.13.0+cpu, from your indexes or local wheels"),
        ("2.13.0+cpu", "", False, True, (), "torch==2.13.0+cpu, from your indexes or local wheels"),
        ("2.13.0", "", False, True, (), "torch==2.13.0 with its CUDA libraries, for this host's NVIDIA driver"),
        (
            "2.13.0",
            "2.13.0+cpu",
            False,
            False,
            ("--torch-backend", "cpu"),
            "torch==2.13.0+cpu from PyTorch's CPU index",
        ),
        (
            "2.13.0",
            "2.13.0+cpu",
            True,
            False,
            (),
            "torch==2.13.0 with CUDA libraries, because no CPU build is in reach",
        ),
        ("2.13.0", "", False, False, (), "torch==2.13.0 with CUDA libraries, because no CPU build is in reach"),
    ],
    ids=["own CPU build", "own CPU build, driver", "driver", "PyTorch's index", "own index", "offline"],
)
def test_cuda_libraries_come_only_where_they_are_needed_or_unavoidable(
    offers: str,
    cpu_index: str,
    own_index: bool,
    driver: bool,
    taken: tuple[str, ...],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A uv whose indexes have these builds.
    uv = write_script(
        tmp_path,
        "uv",
        f"""case "$*" in *--torch-backend*) build={cpu_index};; *) build={offers};; esac
[ -n "$build" ] && echo "torch==$build" """,
    )
    (tmp_path / "tiny.lock").write_text("other==1 \\\n    --hash=sha256:0\ntorch==2.13.0\n")
    environment = Environment("tiny", tmp_path, tmp_path / "venv", tmp_path / "tiny.lock", project=False)
    tool = Uv(str(uv), {"UV_DEFAULT_INDEX": "https://index.example"} if own_index else {}, ())
    monkeypatch.setattr(environments, "has_nvidia_driver", lambda: driver)

    assert Installer(tool, environment, tmp_path / "log").torch_options() == taken
    assert f"torch: {line}" in only_line(capsys.readouterr().out)


@pytest.mark.parametrize("environment", environments.environments(), ids=lambda each: each.name)
def test_lock_files_pin_everything_and_name_no_place(environment: Environment) -> None:
    lines = [line for path in environment.lock_files for line in path.read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith(("#", " "))]

    assert pins
    assert [pin for pin in pins if pin.partition(";")[0].count("==") != 1 or "/" in pin or "@" in pin] == []


def test_every_pin_has_a_hash_and_torch_those_of_both_builds() -> None:
    lines = [line for each in environments.environments(REPOSITORY) for path in each.lock_files for line in lock(path)]
    assert [line for line in lines if "==" in line and not line.endswith("\\")] == []
    torch = re.search(r'"(torch==.*)"', (REPOSITORY / "pyproject.toml").read_text())
    assert torch
    runtime = (REPOSITORY / "requirements-runtime.lock").read_text()
    (hashes,) = re.findall(rf"^{re.escape(torch[1])} \\\n((?: +--hash=\S+(?: \\)?\n)+)", runtime, re.MULTILINE)
    # PyPI's, and PyTorch's CPU builds for Linux, of two versions of Python and two kinds of processors.
    assert len(hashes.splitlines()) > 4


def lock(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_the_runtimes_lock_file_has_no_tool_of_tests_and_checks() -> None:
    runtime, tools = (REPOSITORY / f"requirements-{name}.lock" for name in ("runtime", "development"))
    pins = {path: {line.partition("==")[0] for line in lock(path) if "==" in line} for path in (runtime, tools)}
    asked = re.findall(r"^([a-z][a-z0-9-]*)", (REPOSITORY / "requirements-development.in").read_text(), re.MULTILINE)
    assert {"pytest", "mypy", "ruff", "hypothesis", "tritonclient"} <= set(asked) <= pins[tools]
    # Which transformers needs, too.
    assert pins[runtime] & set(asked) <= {"pyyaml"}
    # One version of what both name: they are installed together.
    both = [line.rstrip(" \\") for path in (runtime, tools) for line in lock(path) if re.match(r"[a-z0-9-]+==", line)]
    versions = {pin.partition(" ;")[0] for pin in both}
    assert len(versions) == len({pin.partition("==")[0] for pin in versions})


def test_a_file_with_another_hash_is_refused_also_as_a_tool(tmp_path: Path) -> None:
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, text in (
            ("WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n"),
            ("METADATA", "Name: tiny\nVersion: 1.0\n"),
        ):
            packed.writestr(
                f"tiny-1.0.dist-info/{name}", f"Metadata-Version: 2.1\n{text}" if name == "METADATA" else text
            )
        packed.writestr("tiny-1.0.dist-info/RECORD", "")
    (tmp_path / "none.lock").write_text("# nothing\n")
    made = Environment("tiny", tmp_path, tmp_path / "venv", tmp_path / "none.lock", False, tmp_path / "tools.lock")
    for digest in ("0" * 64, hashlib.sha256(wheel.read_bytes()).hexdigest()):
        pin = f"tiny==1.0 --hash=sha256:{digest}"
        assert made.tools
        made.tools.write_text(f"--no-index\n--find-links {tmp_path}\n{pin}\n")
        if digest.startswith("0000"):
            with pytest.raises(Problem, match="Hash mismatch for `tiny"):
                ensure(made)
            assert not made.is_ready()
    ensure(made)
    assert made.is_ready()
    made.tools.write_text(f"{made.tools.read_text()}# said differently\n")
    assert not made.is_ready()


def test_the_environments_never_share_a_spark() -> None:
    runtime, airflow = (each.lock_file.read_text() for each in environments.environments(REPOSITORY))

    assert "\npyspark==" in runtime
    assert "\npyspark-client==" not in runtime
    assert "\npyspark-client==" in airflow
    assert "\npyspark==" not in airflow
