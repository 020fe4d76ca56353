"""The distribution: one package of its own, and extras that bring what each use needs, and no more."""

import ast
import csv
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tandem_stack import wheel
from tandem_stack.environments import Environment, Installer
from tandem_stack.uv import ROOT, Uv

from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.batch_job.dataframes import spark_program
from tests.realtime_service.client.scripted import scripted
from tests.realtime_service.client.test_calls import ANSWER
from tests.realtime_service.rollout import tiny_releases
from tests.stack.helpers import only_line

pytestmark = pytest.mark.heavy

EXTRAS = ("client", "serve", "batch", "build")
#: CPU time that importing the client may take, gRPC included, over that of gRPC alone.
IMPORT_OVER_GRPC = 3.0
#: Both ends of the range that the extra `batch` names.
SPARKS = ("3.5.9", "4.3.0")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    wheel.stage(sources)
    wheel.build(sources, folder)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def unpacked(built: Path) -> Path:
    folder = built.with_name("unpacked")
    zipfile.ZipFile(built).extractall(folder)
    return folder


@pytest.fixture
def metadata(unpacked: Path) -> Message:
    [found] = unpacked.glob("*.dist-info/METADATA")
    return Parser().parsestr(found.read_text())


def test_everything_is_in_one_package_that_imports_nothing_by_a_name_of_the_repository(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir()} == {wheel.NAME, "tandem_scoring-0.1.0.dist-info"}
    modules = [path for path in unpacked.rglob("*") if path.suffix in (".py", ".pyi")]
    assert len(modules) > 200
    assert {name for path in modules for name in imported(path.read_text()) & {*wheel.FOLDERS}} == set()
    written = "\n".join(path.read_text() for path in modules)
    assert set(re.findall(rf"-m ({'|'.join(wheel.FOLDERS)})\b", written)) == set()


def test_control_an_import_by_such_a_name_is_found() -> None:
    source = (ROOT / "batch_job" / "driver.py").read_text()
    assert "shared_model" in imported(source)
    assert imported(wheel.prefixed(source)).isdisjoint(wheel.FOLDERS)


def imported(source: str) -> set[str]:
    """The packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_outside_a_checkout_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    assert wheel.main() == 2
    assert only_line(capsys.readouterr().err).startswith("wheel: needs a git checkout: fatal: not a git repository")


def test_data_files_come_along(unpacked: Path) -> None:
    files = "shared_model/deferred/lua/claim.lua", "batch_job/jobs/gpus.sh", "batch_job/reporting/templates/page.css"
    assert [name for name in files if not (unpacked / wheel.NAME / name).is_file()] == []


def test_an_extra_brings_what_it_needs_and_the_client_two_packages(metadata: Message) -> None:
    assert metadata.get_all("Provides-Extra") == [*EXTRAS, "tracing"]
    required = [*map(Requirement, metadata.get_all("Requires-Dist") or [])]
    needed = {extra: {it.name for it in required if is_wanted(it, extra)} for extra in ("", *EXTRAS)}
    assert needed[""] == set()
    assert needed["client"] == {"grpcio", "protobuf"}
    assert "pyspark" not in needed["serve"] | needed["build"]
    assert needed["batch"].isdisjoint({"grpcio", "torch", "nncf"})


def is_wanted(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


@dataclass(frozen=True)
class Place:
    """A Python in which the distribution is found. `folder`: for files; `environ`: to be added."""

    python: str
    options: tuple[str, ...]
    environ: Mapping[str, str]
    folder: Path

    def run(self, *arguments: str) -> str:
        """Standard output."""
        command = [self.python, *self.options, *arguments]
        given = {**os.environ, **self.environ}
        done = subprocess.run(command, cwd=self.folder, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


def call_as_a_client(place: Place) -> None:
    program = f"""
import sys, time
began = time.process_time()
import grpc
alone = time.process_time() - began
from {wheel.NAME}.realtime_service.client import Client
print((time.process_time() - began) / alone)
with Client(sys.argv[1]) as client:
    print(client.score("hello").label)
"""
    with scripted(ANSWER) as script:
        said = [place.run("-c", program, script.address).split() for _ in range(3)]
    assert {label for _, label in said} == {"greeting"}
    assert min(float(over) for over, _ in said) <= IMPORT_OVER_GRPC


def serve(place: Place) -> None:
    module = f"{wheel.NAME}.realtime_service"
    anywhere = ("--address", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    command = [place.python, *place.options, "-m", module, "serve", *anywhere]
    given = {**os.environ, **place.environ}
    with subprocess.Popen(command, cwd=place.folder, env=given, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            address = next(ready[1] for line in process.stdout if (ready := re.match(r"ready in .* on (\S+),", line)))
            said = place.run("-m", module, "call", "card", "--address", address)
        finally:
            process.terminate()
    assert said.startswith("label-0")


def score_frames(place: Place) -> None:
    said = place.run(
        "-c",
        f"""
import pyarrow as pa
import {wheel.NAME}.batch_job as batch_job
print(batch_job.scorer().score(pa.table({{"text": ["card"]}}))["label"][0])
""",
    )
    assert said == "label-0\n"


def build(place: Place) -> None:
    with (place.folder / "intents.csv").open("w") as file:
        rows = [(f"{word} number {number}", word) for word in ("card", "loan") for number in range(6)]
        csv.writer(file).writerows([("text", "label"), *rows])
    place.run("-m", f"{wheel.NAME}.shared_model", "train-head", "--data", "intents.csv", "--out", "head")
    assert (place.folder / "head" / "head.safetensors").exists()


#: The smallest use of each extra.
EXAMPLES: dict[str, Callable[[Place], None]] = {
    "client": call_as_a_client,
    "serve": serve,
    "batch": score_frames,
    "build": build,
}


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a program that finds a tiny release."""
    store = Store(tmp_path / "releases")
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    return {"TANDEM_STATE": str(tmp_path / "state"), "TANDEM_RELEASES": str(tmp_path / "releases")}


@pytest.mark.parametrize("extra", ["client", "serve", "batch"])
def test_an_example_runs_from_the_distribution_alone(
    extra: str, unpacked: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """With the packages of this environment: without -S it would have the repository, too."""
    packages = os.pathsep.join([str(unpacked), *(path for path in sys.path if path.endswith("site-packages"))])
    EXAMPLES[extra](Place(sys.executable, ("-S",), {**environ, "PYTHONPATH": packages}, tmp_path))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", ["client", *(pytest.param(it, marks=pytest.mark.proof) for it in EXTRAS[1:])])
def test_an_example_runs_in_an_environment_with_its_extra_alone(
    extra: str, built: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    python = installed(tmp_path, f"{built}[{extra}]")
    EXAMPLES[extra](Place(python, (), {**environ, "PYTHONPATH": ""}, tmp_path))


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", SPARKS)
def test_frames_are_scored_at_both_ends_of_the_range_of_spark(
    version: str, built: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = installed(tmp_path, f"{built}[batch]", f"pyspark=={version}")
    package = f"{wheel.NAME}.batch_job"
    found = spark_program.run(tmp_path, "classic", {**environ, "PYTHONPATH": ""}, package, python)
    assert found["version"] == version
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    spark_program.check(found)


def installed(folder: Path, *wanted: str) -> str:
    """The Python of a new environment with these and the versions of the lock file, but for Spark."""
    tool = Uv.find()
    environment = Environment("extra", ROOT, folder / "venv", ROOT / "requirements-runtime.lock", project=False)
    pins = re.findall(r"^([a-z0-9-]+==.*?) *\\?$", environment.lock_file.read_text(), re.MULTILINE)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pin for pin in pins if not pin.startswith(("pyspark==", "py4j=="))))
    made = ("venv", "--no-project", "--python", sys.executable, str(environment.prefix))
    subprocess.run([tool.program, *made], env=tool.environ, check=True, capture_output=True)
    options = [*tool.options, *Installer(tool, environment, folder / "log").torch_options()]
    stored = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
    command = ["pip", "install", "--python", str(environment.python), *options, *stored]
    into = [tool.program, *command, "--constraint", str(constraints), *wanted]
    done = subprocess.run(into, env=tool.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(environment.python)
