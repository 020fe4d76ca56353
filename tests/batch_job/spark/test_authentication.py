"""A cluster with a secret, and what its workers see of the driver's environment. On real Spark."""

import re
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from batch_job.launch import spark_submit
from batch_job.spark import authentication
from shared_model.errors import SettingError
from tests.batch_job import cluster

pytestmark = pytest.mark.heavy

PASSWORD = "the-redis-password"  # noqa: S105
#: Starts the driver's session as a nightly run does, and prints what a Python worker has in its environment.
APPLICATION = """
import os
from batch_job.spark import session
spark = session.start("environment")
found = spark.sparkContext.parallelize([0], 1).map(lambda _: sorted(os.environ.items())).collect()
print("WORKER", found[0])
print("ENCRYPTED", spark.conf.get("spark.network.crypto.enabled"))
print("DRIVER", os.environ["REDIS_URL"])
"""
#: Without Tandem's session, and so without the secret.
ROGUE = """
from pyspark.sql import SparkSession
print("ROGUE RAN", SparkSession.builder.getOrCreate().sparkContext.parallelize([0], 1).count())
"""


def submit(folder: Path, master: str, application: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    script = folder / "application.py"
    script.write_text(application)
    own = cluster.environment({"REDIS_URL": f"redis://:{PASSWORD}@127.0.0.1:1", **environment})
    conf = {**spark_submit.spark_conf(own), "spark.log.level": "ERROR"}
    command = ["spark-submit", "--master", master, *spark_submit.conf_args(conf), str(script)]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=120, check=False)


def refused(folder: Path, master: str) -> None:
    """Spark tries again for a minute; the first refusal is enough."""
    script = folder / "rogue.py"
    script.write_text(ROGUE)
    command = ["spark-submit", "--master", master, "--conf", "spark.log.level=WARN", str(script)]
    out = folder / "rogue.out"
    with out.open("w") as log:
        rogue = subprocess.Popen(command, env=cluster.environment({}), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while "Failed to connect to master" not in out.read_text():
            assert time.monotonic() < deadline, out.read_text()
            assert rogue.poll() is None, out.read_text()
            time.sleep(0.1)
        assert "ROGUE RAN 1" not in out.read_text()
    finally:
        rogue.kill()
        rogue.wait()


def checked(ended: "subprocess.CompletedProcess[str]") -> None:
    assert ended.returncode == 0, ended.stderr
    (worker,) = re.findall("^WORKER .*", ended.stdout, re.MULTILINE)
    assert "SPARK" in worker
    assert PASSWORD not in worker
    assert f"DRIVER redis://:{PASSWORD}@" in ended.stdout
    assert "ENCRYPTED true" in ended.stdout


@pytest.mark.proof
def test_a_local_worker_does_not_see_the_password_of_redis(tmp_path: Path) -> None:
    checked(submit(tmp_path, "local[1]", APPLICATION))


def listening(process: psutil.Process) -> set[int]:
    """Its ports."""
    try:
        return {it.laddr.port for it in process.net_connections() if it.status == "LISTEN"}
    except psutil.Error:  # an executor, which ends after its application
        return set()


def test_a_cluster_takes_applications_with_its_secret_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a1b2c3d4" * 8 + "\n")
    with cluster.standalone(cluster.environment({}), tmp_path, ["127.0.0.1"], cores=1, secret=secret) as url:
        checked(submit(tmp_path, url, APPLICATION, TANDEM_SPARK_SECRET_FILE=str(secret)))
        refused(tmp_path, url)
        seen = [" ".join(it.info["cmdline"] or ()) for it in psutil.process_iter(["cmdline"])]
        assert not [it for it in seen if secret.read_text().strip() in it]
        # Of this cluster alone: other tests may run one of their own.
        ports = {it for process in psutil.Process().children(recursive=True) for it in listening(process)}
        assert int(url.rpartition(":")[2]) in ports
        assert 6066 not in ports


def test_the_secret_is_asked_for_where_spark_makes_none(tmp_path: Path) -> None:
    assert authentication.conf("spark://h:7077", "") == {}
    for master in ("local[2]", "yarn", "k8s://https://host:443"):
        assert authentication.conf(master, "") == {
            "spark.authenticate": "true",
            "spark.network.crypto.enabled": "true",
        }
    with pytest.raises(SettingError, match=r"TANDEM_SPARK_SECRET_FILE=.*missing: cannot be read"):
        authentication.conf("spark://h:7077", str(tmp_path / "missing"))
    (tmp_path / "empty").touch()
    with pytest.raises(SettingError, match="is empty"):
        authentication.conf("spark://h:7077", str(tmp_path / "empty"))
