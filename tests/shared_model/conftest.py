"""Texts and engines that several modules compare."""

import itertools
from collections.abc import Iterator

import pytest

from shared_model import demo_messages, devices
from shared_model.building import checkpoint
from shared_model.building.checkpoint import Checkpoint
from shared_model.encoding import Encoder, Encoding
from shared_model.engine import Engine
from shared_model.evaluation import benchmark
from shared_model.evaluation.verdict import ReleaseReport
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.shared_model import tiny_builds, tiny_models


@pytest.fixture(scope="package", autouse=True)
def brief_timing() -> Iterator[None]:
    """Latencies from three calls each instead of twenty: how exact they are is for `make bench-release`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "_MIN_SECONDS", 0.0)
        yield


@pytest.fixture(scope="package")
def encoder(release: Release) -> Encoder:
    return release.encoder()


@pytest.fixture(scope="package")
def encodings(encoder: Encoder) -> list[Encoding]:
    """96 generated messages, and the shortest and longest that the model reads."""
    texts = list(itertools.islice(demo_messages.texts(seed=17), 96))
    return encoder.encode_many([*texts, "", "?", "card " * 60, "card " * 1000])


@pytest.fixture(scope="package")
def engines(release: Release) -> Iterator[dict[Precision, Engine]]:
    """Every CPU variant of the default release."""
    cpu = [v.precision for v in release.manifest.variants if v.device is Device.CPU]
    opened = {precision: release.engine(precision, Device.CPU, devices.cores()) for precision in cpu}
    yield opened
    for engine in opened.values():
        engine.close()


@pytest.fixture(scope="package")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A classifier of three labels with random weights, sure of its answers."""
    return tiny_builds.surer(checkpoint.load(tiny_models.make(tmp_path_factory.mktemp("bert"), "bert")))


@pytest.fixture(scope="package")
def tiny(tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, ReleaseReport]:
    """The release built from it, which passed its gate."""
    return tiny_builds.built_once(tmp_path_factory, tiny_checkpoint, "tiny")


@pytest.fixture(scope="package")
def regression(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, ReleaseReport]:
    """A release that gives one value."""
    folder = tiny_models.make(tmp_path_factory.mktemp("bert"), "bert", labels=["stars"], problem_type="regression")
    return tiny_builds.built_once(tmp_path_factory, checkpoint.load(folder), "regression")
