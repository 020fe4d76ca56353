"""What a machine lacks is said in one line, and ends with exit code 2."""

import ast
import os
import socket
from pathlib import Path

import pytest
from tandem_stack import checks

from tests.stack.helpers import REPOSITORY, only_line, run_python, write_script

pytestmark = pytest.mark.heavy

JAVA_17 = """echo 'openjdk version "17.0.15" 2025-04-15' >&2"""
JAVA_11 = """echo 'openjdk version "11.0.2" 2019-01-15' >&2"""
FIND_JAVA = "from tandem_stack import checks; checks.need_java()"


@pytest.mark.parametrize("version", ["(2, 7, 18)", "(3, 10, 4)", "(3, 13, 0)"])
def test_wrong_python_is_named(version: str) -> None:
    done = run_python("-c", f"import sys; sys.version_info = {version}; import tandem_stack.environments")

    assert done.returncode == 2
    assert only_line(done.stderr).startswith("Python 3.11 or 3.12 is needed")


def test_the_python_check_can_be_read_by_any_python() -> None:
    guard = REPOSITORY / ".stack" / "tandem_stack" / "__init__.py"

    tree = ast.parse(guard.read_text(), feature_version=(3, 4))

    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Match, ast.AsyncFunctionDef)
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]


@pytest.mark.parametrize("command", ["demo", "up"])
def test_taken_port_is_named_before_anything_starts(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        environ = {**os.environ, "TANDEM_AIRFLOW_PORT": str(port), "TANDEM_STATE": str(tmp_path / "state")}
        done = run_python("-m", "tandem_stack", command, environ=environ)

    assert done.returncode == 2
    assert f"port {port} (Airflow, TANDEM_AIRFLOW_PORT)" in only_line(done.stderr)
    assert not (tmp_path / "state").exists()


def test_every_taken_port_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        taken = {"one": one.getsockname(), "other": other.getsockname()}
        with pytest.raises(checks.Problem) as problem:
            checks.need_ports(taken)

    assert all(f"port {address[1]} ({who})" in str(problem.value) for who, address in taken.items())
    checks.need_ports(taken)


def test_wrong_setting_is_named(tmp_path: Path) -> None:
    environ = {**os.environ, "TANDEM_AIRFLOW_PORT": "http", "TANDEM_STATE": str(tmp_path)}
    done = run_python("-m", "tandem_stack", "demo", environ=environ)

    assert done.returncode == 2
    assert "TANDEM_AIRFLOW_PORT='http'" in only_line(done.stderr)


def test_missing_java_says_what_to_install(tmp_path: Path) -> None:
    done = run_python("-m", "tandem_stack.environments", environ={"PATH": str(tmp_path)})

    assert done.returncode == 2
    assert "no Java found" in only_line(done.stderr)
    assert "openjdk-17-jre-headless" in done.stderr


def test_old_java_is_named(tmp_path: Path) -> None:
    write_script(tmp_path / "home" / "bin", "java", JAVA_11)
    write_script(tmp_path / "path", "java", JAVA_17)

    environ = {"PATH": str(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")}
    done = run_python("-m", "tandem_stack.environments", environ=environ)

    assert done.returncode == 2
    assert f"{tmp_path}/home/bin/java is Java 11" in only_line(done.stderr)


def test_a_java_of_the_right_age_is_taken(tmp_path: Path) -> None:
    write_script(tmp_path, "java", JAVA_17)

    assert run_python("-c", FIND_JAVA, environ={"PATH": str(tmp_path)}).returncode == 0


def test_java_is_installed_where_that_is_ours_to_do(tmp_path: Path) -> None:
    # This apt-get installs what is asked for by writing a java beside itself.
    java = tmp_path / "java"
    write_script(
        tmp_path,
        "apt-get",
        f"""echo "$@" >>{tmp_path}/asked; [ "$1" = update ] && exit 0
printf '%s\\n' '#!/bin/sh' '{JAVA_17.replace("'", "")}' >{java}; /bin/chmod +x {java}""",
    )

    done = run_python("-c", FIND_JAVA, environ={"PATH": str(tmp_path)})

    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    if os.geteuid() == 0:
        assert "openjdk-17-jre-headless" in asked
        assert java.exists()
    else:
        assert (done.returncode, asked) == (1, "")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    checks.need_disk(tmp_path, needed=1)

    with pytest.raises(checks.Problem, match=rf"{tmp_path}: .* GB free, .* GB needed"):
        checks.need_disk(tmp_path, needed=10**18)
