"""The planning module that Airflow imports: standard library only, and the environment that spark-submit needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from batch_job import plan

REPOSITORY = Path(plan.__file__).parents[1]


def test_plan_imports_nothing_but_the_standard_library() -> None:
    # -S: site-packages are not on the path at all.
    code = "import sys; sys.path.insert(0, sys.argv[1]); from batch_job import plan; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code, str(REPOSITORY)], capture_output=True, text=True, check=True
    )
    ours = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in ours if not name.startswith("__")} == {"batch_job", "batch_job.plan"}


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
    environment = {**inherited, **plan.spark_environment(inherited)}
    assert environment["PATH"] == f"{tmp_path}/bin:/airflow/bin:/usr/bin"
    assert environment["SPARK_HOME"] == str(home)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == f"{tmp_path}/bin/python"
    assert environment["PYTHONPATH"] == ""
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_cluster_may_set_the_address_it_needs() -> None:
    assert plan.spark_environment({"SPARK_LOCAL_IP": "10.0.0.7"})["SPARK_LOCAL_IP"] == "10.0.0.7"


def test_a_step_takes_day_and_record_from_its_environment(tmp_path: Path) -> None:
    """No text of a person's becomes part of a command: a key with quotes and semicolons arrives as it is."""
    fake = tmp_path / "runtime with spaces" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    fake.symlink_to(sys.executable)
    (tmp_path / "batch_job").mkdir()
    (tmp_path / "batch_job" / "__main__.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    command = plan.step_command("plan", {"TANDEM_RUNTIME_PREFIX": str(fake.parents[1])})
    hostile = "2026-01-14'\"; exit 7 #"
    environment = {**os.environ, "DS": hostile, "RECORD": "/r/a b.json"}
    done = subprocess.run(
        ["bash", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["plan", "--ds", hostile, "--record", "/r/a b.json"]


def test_records_lie_by_day_in_the_state_folder() -> None:
    path = plan.record_path("2026-01-14", "run 1", {"TANDEM_STATE": "/state"})
    assert path == "/state/runs/2026-01-14/run 1.json"


def test_another_python_is_named(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(sys.prefix)
    assert plan.wrong_python(str(link), sys.prefix, "the driver") == ""
    problem = plan.wrong_python("/opt/runtime", "/usr", "a worker")
    assert problem == "a worker runs on the Python of /usr, the run was planned on /opt/runtime; set PYSPARK_PYTHON"
