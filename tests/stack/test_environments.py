"""An environment is what its lock file says, or it is made again. Real virtual environments, nothing downloaded."""

import pytest
from tandem_stack import environments
from tandem_stack.checks import Problem
from tandem_stack.environments import Environment

from tests.stack.helpers import REPOSITORY


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    root = tmp_path_factory.mktemp("root")
    (root / "tiny.lock").write_text("# nothing\n")
    made = Environment("tiny", root, "venv", "tiny.lock", project=False)
    environments.ensure([made], root / "logs")
    return made


def ensure(environment: Environment) -> None:
    environments.ensure([environment], environment.root / "logs")


def test_a_finished_environment_is_left_alone(environment: Environment) -> None:
    before = environment.stamp_file.stat().st_mtime_ns

    ensure(environment)

    assert environment.is_ready()
    assert environment.stamp_file.stat().st_mtime_ns == before


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


def test_what_pip_refuses_is_one_line_and_leaves_no_stamp(environment: Environment) -> None:
    environment.lock_file.write_text("--no-index\nno-such-package==1.0\n")

    with pytest.raises(Problem) as problem:
        ensure(environment)

    assert str(problem.value).startswith("tiny environment: No matching distribution found for no-such-package==1.0")
    assert "install-tiny.log" in str(problem.value)
    assert not environment.stamp_file.exists()


@pytest.mark.parametrize("environment", environments.environments(), ids=lambda each: each.name)
def test_lock_files_pin_everything_and_name_no_place(environment: Environment) -> None:
    lines = environment.lock_file.read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert pins
    assert [pin for pin in pins if pin.count("==") != 1 or "/" in pin or "@" in pin] == []


def test_the_environments_never_share_a_spark() -> None:
    runtime, airflow = (each.lock_file.read_text() for each in environments.environments(REPOSITORY))

    assert "\npyspark==" in runtime
    assert "\npyspark-client==" not in runtime
    assert "\npyspark-client==" in airflow
    assert "\npyspark==" not in airflow
