"""The planning module that Airflow imports: standard library only, and the environment that spark-submit needs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from batch_job.launch import spark_submit
from batch_job.settings import NightlySettings
from shared_model import settings
from shared_model.errors import SettingError

REPOSITORY = Path(spark_submit.__file__).parents[2]


@pytest.mark.heavy
def test_plan_imports_nothing_but_the_standard_library() -> None:
    # -S: site-packages are not on the path at all.
    code = "import sys; sys.path.insert(0, sys.argv[1]); from batch_job.launch import spark_submit; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code, str(REPOSITORY)], capture_output=True, text=True, check=True
    )
    ours = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in ours if not name.startswith("__")} == {
        "batch_job",
        "batch_job.launch",
        "batch_job.launch.spark_submit",
    }


def test_spark_submit_gets_the_runtime_whatever_is_inherited(tmp_path: Path) -> None:
    home = tmp_path / "lib" / "python3.12" / "site-packages" / "pyspark"
    home.mkdir(parents=True)
    inherited = {
        "TANDEM_RUNTIME_PREFIX": str(tmp_path),
        "PATH": "/airflow/bin:/usr/bin",
        "SPARK_HOME": "/elsewhere",
        "PYSPARK_PYTHON": "/airflow/bin/python",
        "PYSPARK_DRIVER_PYTHON": "/airflow/bin/python",
        "PYTHONPATH": "/airflow/plugins",
    }
    environment = {**inherited, **spark_submit.spark_environment(inherited)}
    assert environment["PATH"] == f"{tmp_path}/bin:/airflow/bin:/usr/bin"
    assert environment["SPARK_HOME"] == str(home)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == f"{tmp_path}/bin/python"
    assert environment["PYTHONPATH"] == ""
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_spark_settings_pass_through_and_win(tmp_path: Path) -> None:
    passed = {"TANDEM_SPARK_CONF": "spark.executor.memory=4g spark.ui.enabled=true 'spark.app.tag=a b=c'"}
    conf = spark_submit.spark_conf(passed)
    assert (conf["spark.executor.memory"], conf["spark.ui.enabled"], conf["spark.app.tag"]) == ("4g", "true", "a b=c")
    assert spark_submit.spark_conf({})["spark.ui.enabled"] == "false"
    file = tmp_path / "spark.properties"
    file.write_text("# ours\nspark.ui.enabled true\nspark.kubernetes.token=not-to-be-shown\n")
    command = spark_submit.spark_submit_command("2026-01-14", "r.json", "yarn", {"TANDEM_SPARK_CONF": str(file)})
    assert command[3:7] == ["--deploy-mode", "client", "--properties-file", str(file)]
    assert not [part for part in command if "not-to-be-shown" in part or part.startswith("spark.ui.enabled")]


@pytest.mark.parametrize("passed", ["nonsense", "executor.memory=4g", "spark.a=1 spark.b", "spark.a='1"])
def test_an_invalid_spark_setting_is_refused(passed: str) -> None:
    with pytest.raises(SettingError, match=r"TANDEM_SPARK_CONF=.*: expected a file that can be read, or"):
        settings.load(NightlySettings, {"TANDEM_SPARK_CONF": passed})


def test_only_a_local_driver_is_bound_to_loopback() -> None:
    assert "SPARK_LOCAL_IP" not in spark_submit.spark_environment({}, "spark://host:7077")
    assert spark_submit.spark_environment({}, "local[2]")["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_record_is_behind_a_url_where_the_store_is() -> None:
    assert spark_submit.record_path("d", "r", {"TANDEM_STORE": "s3://b/x/"}) == "s3://b/x/runs/d/r.json"
    assert spark_submit.record_path("d", "r", {"TANDEM_STATE": "/s"}) == "/s/runs/d/r.json"


def test_a_cluster_may_set_the_address_it_needs() -> None:
    assert spark_submit.spark_environment({"SPARK_LOCAL_IP": "10.0.0.7"})["SPARK_LOCAL_IP"] == "10.0.0.7"


@pytest.mark.heavy
def test_a_steps_command_line_is_read_by_no_shell(tmp_path: Path) -> None:
    """No text of a person's becomes part of a command: a key with quotes and semicolons arrives as it is."""
    fake = tmp_path / "runtime with spaces" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    fake.symlink_to(sys.executable)
    (tmp_path / "batch_job").mkdir()
    (tmp_path / "batch_job" / "__main__.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    hostile = "2026-01-14'\"; exit 7 #"
    environ = {"TANDEM_RUNTIME_PREFIX": str(fake.parents[1])}
    command = spark_submit.step_command("publish", hostile, "/r/a b.json", environ)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["publish", "--ds", hostile, "--record", "/r/a b.json"]


@pytest.mark.parametrize("code", range(-15, 80))
def test_a_step_is_tried_again_unless_it_would_end_in_the_same_way(code: int) -> None:
    assert spark_submit.is_final(code) == (code in (1, 2, 3, 4))


def test_the_line_that_says_why_is_the_steps_own_and_not_the_jvms() -> None:
    why = "batch_job score: ds=2026-01-14: refused"
    assert spark_submit.complaint(["reading", why, "WARN ShutdownHookManager: gone", ""]) == why
    assert spark_submit.complaint(["java.lang.OutOfMemoryError", " "]) == "java.lang.OutOfMemoryError"
    assert spark_submit.complaint([]) == ""


@pytest.mark.parametrize(
    ("key", "conf", "day", "problem"),
    [
        ("2026-01-14", None, "2026-01-14", ""),
        (None, {"day": "2026-01-14"}, "2026-01-14", ""),
        ("2026-01-14", {"day": "2026-01-14"}, "2026-01-14", ""),
        (
            "2026-01-14",
            {"day": "2026-01-15"},
            "2026-01-14",
            "two days: day is 2026-01-15, the partition key 2026-01-14",
        ),
        (None, {}, "", "no day: "),
        (None, None, "", "no day: "),
    ],
)
def test_a_run_says_which_day_it_scores(
    key: str | None, conf: dict[str, object] | None, day: str, problem: str
) -> None:
    assert spark_submit.day_of(key, conf) == day
    found = spark_submit.day_problem(key, conf)
    assert found.startswith(problem) if problem else not found
    assert len(found.splitlines()) <= 1


def test_a_report_of_the_dag_fails_where_nothing_was_published() -> None:
    assert "--published" in spark_submit.step_command("report", "2026-01-14", "/r.json")
    assert "--published" not in spark_submit.step_command("publish", "2026-01-14", "/r.json")


def test_records_lie_by_day_in_the_state_folder() -> None:
    path = spark_submit.record_path("2026-01-14", "run 1", {"TANDEM_STATE": "/state"})
    assert path == "/state/runs/2026-01-14/run 1.json"


def test_another_python_is_named(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(sys.prefix)
    assert spark_submit.wrong_python(str(link), sys.prefix, "the driver") == ""
    problem = spark_submit.wrong_python("/opt/runtime", "/usr", "a worker")
    assert problem == "a worker runs on the Python of /usr, the run was planned on /opt/runtime; set PYSPARK_PYTHON"


def test_the_drivers_jvm_logs_warnings_unless_a_person_configures_spark() -> None:
    options = spark_submit.spark_conf({})[spark_submit.JAVA_OPTIONS]
    assert f'"-Dlog4j2.configurationFile={Path(spark_submit.LOGGING).as_uri()}"' in options
    assert Path(spark_submit.LOGGING).read_text().splitlines()[2] == "rootLogger.level = warn"
    assert "log4j2" not in spark_submit.spark_conf({"SPARK_CONF_DIR": "/etc/spark"})[spark_submit.JAVA_OPTIONS]


def test_packages_inside_setuptools_are_none_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a process that imports setuptools has them: its workers' has not."""
    before = spark_submit.packages()
    inside = tmp_path / "_vendor" / "inside-1.dist-info"
    inside.mkdir(parents=True)
    (inside / "METADATA").write_text("Metadata-Version: 2.1\nName: inside\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(inside.parent))
    assert spark_submit.packages() == before
    monkeypatch.syspath_prepend(str(shutil.move(inside.parent, tmp_path / "other")))
    assert spark_submit.packages() == before | {"inside==1"}
