"""A variant is attested once before it serves, by the first process that has its device."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch

from shared_model.errors import ReleaseError
from shared_model.evaluation import attestation, report
from shared_model.evaluation.verdict import ReleaseReport
from shared_model.releases.manifest import Variant
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.shared_model import tiny_builds

pytestmark = pytest.mark.heavy

Built = tuple[Release, ReleaseReport]

#: FP16 is for CUDA; the same engine runs on CPU, so that proving it is tested where there is no GPU.
FP16 = Variant(Precision.FP16, Device.CPU, {name: name for name in ("config.json", "weights.safetensors")})
NOTE = "proof-fp16-cpu.json"


@pytest.fixture
def unproven(tiny: Built, tmp_path: Path) -> Release:
    return with_fp16(tiny[0], tmp_path)


def with_fp16(release: Release, root: Path, files: dict[str, bytes] | None = None) -> Release:
    return tiny_builds.resealed(release, root, files, variants=(*release.manifest.variants, FP16))


def prove(release: Release) -> None:
    attestation.ensure(release, Precision.FP16, Device.CPU, threads=1)


def note_of(release: Release) -> dict[str, object]:
    (variant,) = json.loads(release.read_note(NOTE) or b"")["variants"]
    return dict(variant)


def test_an_unproven_variant_is_proven_and_the_proof_kept(unproven: Release) -> None:
    prove(unproven)
    document = json.loads(unproven.read_note(NOTE) or b"")
    assert document["release"] == unproven.id
    note = note_of(unproven)
    assert (note["precision"], note["device"], note["compiled"], note["passed"]) == ("fp16", "cpu", "fp16", True)
    assert note["texts"] == attestation.ATTESTATION_TEXTS
    assert isinstance(note["clear_agreement"], float)
    assert note["clear_agreement"] >= 0.99
    assert isinstance(note["max_difference"], float)
    assert note["max_difference"] > 0  # FP16 was run, not fp32 once more
    unproven.verify()


def unreadable(release: Release) -> None:
    """Damage every file, so that another attestation would fail."""
    for path in release.manifest.files:
        (Path(release.place) / path).write_bytes(b"gone")


def test_a_proven_variant_is_not_proven_again(unproven: Release) -> None:
    prove(unproven)
    unreadable(unproven)
    prove(unproven)


def test_what_the_gate_passed_needs_no_proof(tiny: Built, tmp_path: Path) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    report.write(release, replace(tiny[1], release=release.id))
    unreadable(release)
    for precision in (Precision.FP32, Precision.BF16, Precision.INT8):
        attestation.ensure(release, precision, Device.CPU, threads=1)
    assert not list(Path(release.place).glob("proof-*"))


def test_what_the_gate_refused_is_refused_at_once(tiny: Built, tmp_path: Path) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    fp32, bf16, int8 = tiny[1].variants
    refused = replace(bf16, failures=("loses its way",))
    report.write(release, replace(tiny[1], release=release.id, variants=(fp32, refused, int8)))
    unreadable(release)
    with pytest.raises(ReleaseError, match=rf"^release {release.id}: bf16/cpu was refused: loses its way$"):
        attestation.ensure(release, Precision.BF16, Device.CPU, threads=1)


@pytest.mark.parametrize(
    "worthless",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"release": "another-0123456789ab", "variants": [{"precision": "fp16", "device": "cpu", "passed": true}]}',
        b'{"release": "RELEASE", "variants": [{"precision": "fp16", "device": "cpu"}]}',
        b'{"release": "RELEASE", "variants": [{"precision": "fp16", "device": "cuda", "passed": true}]}',
        b'{"release": "RELEASE", "variants": 7}',
    ],
)
@pytest.mark.parametrize("name", [report.JSON, NOTE])
def test_a_note_that_proves_nothing_is_no_proof(unproven: Release, name: str, worthless: bytes) -> None:
    unproven.write_note(name, worthless.replace(b"RELEASE", unproven.id.encode()))
    unreadable(unproven)
    with pytest.raises(ReleaseError, match="does not match its sha256"):
        prove(unproven)


def test_a_variant_that_disagrees_is_refused_now_and_later(tiny: Built, tmp_path: Path) -> None:
    tensors = safetensors.torch.load(tiny[0].read("weights.safetensors"))
    weight = tensors["model.classifier.weight"]
    tensors["model.classifier.weight"] = weight.roll(1, 0).contiguous()
    release = with_fp16(tiny[0], tmp_path, {"weights.safetensors": safetensors.torch.save(tensors)})
    line = rf"^release {release.id}: fp16/cpu was refused: names the reference's label for [\d.]+% of \d+ texts .+$"
    with pytest.raises(ReleaseError, match=line):
        prove(release)
    assert note_of(release)["passed"] is False
    unreadable(release)
    with pytest.raises(ReleaseError, match=line):
        prove(release)


def test_a_variant_that_is_too_slow_here_may_serve(unproven: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has no budget, and a replica judges what it serves again and again."""
    monkeypatch.setenv("TANDEM_GATE_BATCH_MS", "0.001")
    prove(unproven)
    assert "its lane allows 0.001 ms" in str(note_of(unproven)["slow_here"])


def test_a_variant_that_cannot_run_is_refused_but_tried_again(tiny: Built, tmp_path: Path) -> None:
    """A device may have been without memory for a moment."""
    release = with_fp16(tiny[0], tmp_path, {"config.json": b"{}"})
    with pytest.raises(ReleaseError, match=r"^release tiny-\w+: fp16/cpu was refused: cannot run: .+$"):
        prove(release)
    assert release.read_note(NOTE) is None


def test_where_nothing_can_be_written_a_proof_still_counts(unproven: Release, caplog: pytest.LogCaptureFixture) -> None:
    # A folder in the note's place: as root, a read-only folder would still be written to.
    (Path(unproven.place) / NOTE).mkdir()
    prove(unproven)
    assert [record.message for record in caplog.records if "is not kept" in record.message]


def test_provers_at_the_same_time_do_no_harm(unproven: Release) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(prove, [unproven] * 4))
    assert note_of(unproven)["passed"] is True


def test_proving_loads_no_framework_until_it_must() -> None:
    """Executors and replicas import it."""
    code = (
        "import sys, shared_model.evaluation.attestation as p;"
        "print([m for m in ('torch', 'openvino', 'nncf', 'scipy', 'transformers', 'sklearn') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
