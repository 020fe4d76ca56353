"""Releases built from models of a few kilobytes, through the whole pipeline, in seconds."""

import fcntl
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from pydantic import TypeAdapter

from shared_model import devices
from shared_model.building import build
from shared_model.building.checkpoint import Checkpoint
from shared_model.evaluation import corpora
from shared_model.evaluation.corpora import Texts
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.verdict import ReleaseReport
from shared_model.releases.manifest import Facts
from shared_model.releases.store import Release, Store

#: Weights of a random model make it unsure of everything; its last layer times this makes it sure.
_SURER = 40.0

#: Random weights agree less well with their roundings than trained ones, least in the 7 bits of CPUs without VNNI.
_MIN_AGREEMENT = 0.75 if devices.has_vnni() else 0.2
#: How fast calls are is for other tests.
BOUNDS = GateSettings(gate_min_agreement=_MIN_AGREEMENT, gate_latency_ms=10_000, gate_batch_ms=10_000)


def surer(checkpoint: Checkpoint, times: float = _SURER) -> Checkpoint:
    """The same model, whose classifier prefers its labels by clear margins."""
    tensors = safetensors.torch.load(checkpoint.files["weights.safetensors"])
    for name in tensors:
        if name in ("model.classifier.weight", "head.weight"):
            tensors[name] = tensors[name] * times
    return replace(checkpoint, files={**checkpoint.files, "weights.safetensors": safetensors.torch.save(tensors)})


def few_texts(checkpoint: Checkpoint, gate: int = 200) -> Texts:
    """Enough for a tiny model."""
    chosen = corpora.choose(checkpoint.output, checkpoint.reads)
    judged = corpora.generated_texts(checkpoint.reads, gate)
    return Texts(chosen.calibration[:60], chosen.validation[:20], judged)


def built(root: Path, checkpoint: Checkpoint, name: str = "tiny") -> tuple[Release, ReleaseReport]:
    """Through the gate at BOUNDS, on few texts."""
    return build.build(Store(root), checkpoint, name, few_texts(checkpoint), BOUNDS, say=lambda line: None)


def built_once(temporary: pytest.TempPathFactory, checkpoint: Checkpoint, name: str) -> tuple[Release, ReleaseReport]:
    """As `built`, by the first of the run's workers that needs it; the release is for reading alone."""
    worker = temporary.getbasetemp()
    root = (worker.parent if "PYTEST_XDIST_WORKER" in os.environ else worker) / f"built-{name}"
    root.mkdir(exist_ok=True)
    report, kept = root / "report.json", TypeAdapter(ReleaseReport)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not report.exists():
            report.write_bytes(kept.dump_json(built(root / "releases", checkpoint)[1]))
    found = kept.validate_json(report.read_bytes())
    return Store(root / "releases").open(found.release), found


def resealed(release: Release, root: Path, files: dict[str, bytes] | None = None, **facts: Any) -> Release:
    """The same bytes, or with other `files`, and other `facts`: a release without a verdict."""
    kept = {path: release.read(path) for path in release.manifest.files}
    known = {name: getattr(release.manifest, name) for name in Facts.__dataclass_fields__}
    return Store(root).seal(kept | (files or {}), Facts(**{**known, **facts}))
