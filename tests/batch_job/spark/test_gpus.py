"""GPUs as Spark hands them out: on a standalone cluster whose GPU is the word of a discovery script."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkConf, TaskContext
from pyspark.sql import SparkSession

from batch_job.launch import spark_submit
from batch_job.scoring import models
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import gpus
from shared_model import devices
from shared_model.engine import Engine
from shared_model.errors import JobError, SettingError
from shared_model.releases.store import Release
from shared_model.types import WHOLE, Device, Precision, Spread
from tests.batch_job import cluster
from tests.batch_job.spark import gpu_job
from tests.conftest import REPOSITORY

#: The address from the discovery script: not 0, which is also the default.
GPU = 3


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpus") / "discover.sh"
    path.write_text(f"""#!/bin/sh\necho '{{"name": "gpu", "addresses": ["{GPU}"]}}'\n""")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def environment(script: Path) -> dict[str, str]:
    worker = f"-Dspark.worker.resource.gpu.amount=1 -Dspark.worker.resource.gpu.discoveryScript={script}"
    return cluster.environment({"TANDEM_SPARK_GPU_SCRIPT": str(script), "SPARK_WORKER_OPTS": worker})


@pytest.fixture(scope="module")
def master(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and a worker with two cores and a GPU."""
    with cluster.standalone(environment, tmp_path_factory.mktemp("cluster"), ["127.0.0.1"], cores=2) as url:
        yield url


@pytest.mark.heavy
def test_one_task_scores_on_a_gpu_and_the_next_finds_its_worker(
    master: str, environment: dict[str, str], tmp_path: Path
) -> None:
    memory = ["--driver-memory", "512m", "--executor-memory", "512m", "--conf", "spark.executor.cores=2"]
    conf = spark_submit.conf_args(spark_submit.spark_conf(environment))
    command = ["spark-submit", "--master", master, *memory, *conf, gpu_job.__file__, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    # The GPU of a task decides its engine.
    assert (seen["device"], seen["precision"]) == (Device.CUDA, Precision.FP16)
    assert {task["gpu"] for task in [*seen["reading"], *seen["scoring"]]} == {GPU}
    assert seen["slots"] == 1
    # Reading has all cores, one task on each.
    assert [(task["alone"], task["threads"]) for task in seen["reading"]] == [(False, 1)] * gpu_job.READING
    # Scoring has the GPU to itself, with all cores to tokenise, and the worker that has the model.
    assert [(task["alone"], task["threads"]) for task in seen["scoring"]] == [(True, 2)] * gpu_job.SCORING
    assert [(task["alone"], task["threads"]) for task in seen["one core"]] == [(True, 1)] * gpu_job.SCORING
    assert len({task["pid"] for task in seen["scoring"]}) == len({task["pid"] for task in seen["one core"]}) == 1


def test_a_model_is_opened_on_the_gpu_that_the_task_was_given(
    release: Release, options: ScoringOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[object] = []

    def engine(
        self: Release, precision: Precision, device: Device, threads: int, streams: int, spread: Spread
    ) -> Engine:
        used.append((precision, device, spread.gpus))
        return half(self, Precision.BF16, Device.CPU, threads)

    half = Release.engine
    given = iter([(1,), (1,), (2, 3)])
    monkeypatch.setattr(Release, "engine", engine)
    monkeypatch.setattr("batch_job.scoring.options.attestation.ensure", lambda *_: used.append("proof"))
    monkeypatch.setattr("batch_job.scoring.models.use_gpu", used.append)
    monkeypatch.setattr("batch_job.scoring.models.gpus.given", lambda: next(given))
    monkeypatch.setattr(models, "_opened", {})
    on_gpu = ScoringOptions(options.releases_root, options.release, Device.CUDA, 64, 2048)
    opened_models = [models.open_model(on_gpu, threads=1) for _ in range(3)]
    half_on_cuda = (Precision.FP16, Device.CUDA)
    assert used == [1, "proof", (*half_on_cuda, (1,)), 2, "proof", (*half_on_cuda, (2, 3))]
    assert [model.device for model in opened_models] == ["cuda:1", "cuda:1", "cuda:2,3"]
    assert opened_models[0] is opened_models[1]
    opened_models[2].engine.close()


class Context(SimpleNamespace):
    """A task that was given `addresses`."""

    def resources(self) -> dict[str, object]:
        return {"gpu": SimpleNamespace(addresses=self.addresses)} if self.addresses else {}


@pytest.mark.parametrize(("addresses", "numbers"), [(["5"], (5,)), (["2", "3"], (2, 3)), ([], ())])
def test_a_task_knows_its_gpus(monkeypatch: pytest.MonkeyPatch, addresses: list[str], numbers: tuple[int, ...]) -> None:
    assert gpus.given() == ()
    monkeypatch.setattr(TaskContext, "get", lambda: Context(addresses=addresses))
    assert gpus.given() == numbers


@pytest.mark.parametrize(
    ("master", "addresses", "device"),
    [
        ("spark://host:7077", ["0"], Device.CUDA),
        ("spark://host:7077", [], Device.CPU),
        ("local-cluster[2,1,1024]", [], Device.CPU),
        ("local[2]", [], Device.CUDA),
    ],
)
def test_a_gpu_that_is_there_is_only_used_if_it_was_given(
    monkeypatch: pytest.MonkeyPatch, master: str, addresses: list[str], device: Device
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Context(addresses=addresses))
    monkeypatch.setattr(devices, "detect", lambda: Device.CUDA)
    assert gpus.task_device(master) is device


def test_an_address_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Context(addresses=["GPU-6c1a"]))
    with pytest.raises(JobError, match="discovery script gave the address 'GPU-6c1a', not a number"):
        gpus.given()


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", "1"), ("local[3]", "3"), ("local[*]", str(os.cpu_count())), ("local[4, 2]", "4")],
)
def test_in_one_process_a_gpu_runs_one_task_at_a_time(monkeypatch: pytest.MonkeyPatch, master: str, cores: str) -> None:
    monkeypatch.setattr(devices, "detect", lambda: Device.CUDA)
    assert gpus.local_conf(master) == {"spark.task.cpus": cores, "spark.python.factory.idleWorkerMaxPoolSize": "1"}
    assert gpus.local_conf("spark://host:7077") == gpus.local_conf("local-cluster[2,1,1024]") == {}
    monkeypatch.setattr(devices, "detect", lambda: Device.CPU)
    assert gpus.local_conf(master) == {}


def test_in_one_process_scoring_has_no_profile(spark: SparkSession) -> None:
    assert gpus.scoring_profile(spark) is None


def session_with(gpus_of_an_executor: str) -> SparkSession:
    conf = SparkConf(loadDefaults=False).set("spark.executor.resource.gpu.amount", gpus_of_an_executor)
    context = SimpleNamespace(master="spark://host:7077", getConf=lambda: conf)
    return SimpleNamespace(sparkContext=context)  # type: ignore[return-value]


@pytest.mark.parametrize("amount", ["0.5", "0", "1.5"])
def test_shares_of_a_gpu_are_refused_in_one_line(spark: SparkSession, amount: str) -> None:
    with pytest.raises(JobError, match=rf"^spark.executor.resource.gpu.amount={amount}: an executor scores with whole"):
        gpus.scoring_profile(session_with(amount))


def test_a_task_scores_on_all_gpus_of_its_executor(spark: SparkSession) -> None:
    profile = gpus.scoring_profile(session_with("2"))
    assert profile
    assert profile.taskResources["gpu"].amount == 2


def test_an_executor_has_as_many_gpus_as_ranks(script: Path) -> None:
    asked = spark_submit.spark_conf({"TANDEM_SPARK_GPU_SCRIPT": str(script), "TANDEM_NIGHTLY_TENSOR_PARALLEL": "4"})
    assert asked["spark.executor.resource.gpu.amount"] == "4"


@pytest.mark.parametrize(("there", "given", "ranks"), [(0, (), 2), (1, (), 2), (8, (0, 1, 2), 4)])
def test_too_few_gpus_for_the_ranks_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, there: int, given: tuple[int, ...], ranks: int
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: there)
    options = ScoringOptions("", "", Device.CUDA, ranks=ranks)
    line = f"TANDEM_NIGHTLY_TENSOR_PARALLEL='{ranks}': expected at most .* which is {len(given) or there}$"
    with pytest.raises(SettingError, match=line):
        options.spread(given)
    assert ScoringOptions("", "", Device.CPU).spread() == WHOLE


def test_without_a_script_nothing_is_asked_of_spark(script: Path) -> None:
    assert not [name for name in spark_submit.spark_conf({}) if "gpu" in name]
    asked = spark_submit.spark_conf({"TANDEM_SPARK_GPU_SCRIPT": str(script), "TANDEM_SPARK_TASK_GPU": "0.5"})
    assert asked["spark.task.resource.gpu.amount"] == "0.5"
    assert asked["spark.executor.resource.gpu.discoveryScript"] == str(script)


@pytest.mark.heavy
def test_the_script_that_comes_with_tandem_says_what_nvidia_smi_says(tmp_path: Path) -> None:
    tool, script = tmp_path / "nvidia-smi", REPOSITORY / "batch_job" / "jobs" / "gpus.sh"
    tool.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n")
    tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"name": "gpu", "addresses": ["0", "1"]}
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert subprocess.run([script], env=environment, capture_output=True, check=False).returncode == 1
    assert shutil.which(str(script)), "it must be executable"
