"""A standalone Spark cluster on loopback, and a Python that it does not run on."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from batch_job.launch import spark_submit
from tests import spark_classes
from tests.conftest import REPOSITORY
from tests.redis_nodes import free_port


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Of the cluster and of spark-submit, as `batch_job score` makes it where `own` is set, too."""
    settings = {**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix, **own}
    # Of master, workers and executors, too.
    brief = {"PYTHONPATH": str(REPOSITORY), "SPARK_DAEMON_MEMORY": "256m", "JAVA_TOOL_OPTIONS": spark_classes.OPTIONS}
    return {**settings, **spark_submit.spark_environment(settings), **brief}


#: Of master and workers, as docker-compose.yml writes it.
_SECURE = """
spark.authenticate true
spark.network.crypto.enabled true
spark.master.rest.enabled false
spark.authenticate.secret {}
"""


@contextmanager
def standalone(
    environment: Mapping[str, str], folder: Path, hosts: Sequence[str], cores: int, secret: Path | None = None
) -> Iterator[str]:
    """The URL of a master; each of `hosts`, addresses of loopback, has a worker with so many cores."""
    url = f"spark://127.0.0.1:{(port := free_port())}"
    size = ["--cores", str(cores), "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder)]
    conf = folder / "spark.conf"
    conf.write_text(_SECURE.format(secret.read_text()) if secret else "")
    secured = ["--properties-file", str(conf)]
    commands = [
        [
            "master.Master",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            "--port",
            str(port),
            "--properties-file",
            str(conf),
        ],
        *(["worker.Worker", "--host", host, *size, *secured, url] for host in hosts),
    ]
    with open(folder / "cluster.log", "w") as log:
        started = [
            subprocess.Popen(
                [f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
            )
            for name, *arguments in commands
        ]
        try:
            yield url
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(20)


def other_python(folder: Path) -> str:
    """A Python that is not the runtime's."""
    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin" / "python")
