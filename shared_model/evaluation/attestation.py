"""Attestation of a variant before it serves: by the release's report, or by the first process that has its device."""

import contextlib
import json
import logging
from typing import Any

from shared_model import settings
from shared_model.errors import ReleaseError
from shared_model.evaluation import gate, report
from shared_model.evaluation.corpora import generated_texts
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.releases import verdict_signature
from shared_model.releases.manifest import Variant
from shared_model.releases.store import Release
from shared_model.types import WHOLE, Device, Precision, Spread

_log = logging.getLogger(__name__)

#: Texts for an attestation: enough to measure shares of a percent, few enough for the start of a process.
ATTESTATION_TEXTS = 400


def ensure(release: Release, precision: Precision, device: Device, threads: int, spread: Spread = WHOLE) -> None:
    """Return if a variant may serve, spread over devices as here. Without a verdict in the report or in an earlier
    attestation, it is evaluated now, in seconds: parity with fp32 on generated texts, with calls on `threads` threads.
    Replicas judge its speed once it serves, and Spark has no budget. The verdict is stored as a note.

    Raises: ReleaseError if the variant was refused, now or before, or cannot run.
    """
    variant = release.manifest.variant(precision, device)
    known = _known(release, variant)
    if known is None:
        _log.info("release %s: evaluating %s, which has no verdict that counts here yet", release.id, variant)
        known = _attest(release, variant, threads, spread)
    if known:
        raise ReleaseError(f"release {release.id}: {variant} was refused: {known[0]}")


def has_verdict(release: Release, precision: Precision, device: Device) -> bool:
    """Whether a variant has a verdict, passed or refused. Raises: ReleaseError if there is no such variant."""
    return _known(release, release.manifest.variant(precision, device)) is not None


def note_name(variant: Variant) -> str:
    return f"proof-{variant.precision}-{variant.device}.json"


def _known(release: Release, variant: Variant) -> tuple[str, ...] | None:
    """Failures in the variant's stored verdict, empty if it passed; None if it has no verdict that counts.

    Raises: ReleaseError for a report that was changed after it was signed.
    """
    judged = _signed_report(release)
    if (known := _failures_in(judged, variant)) is not None:
        return known
    # Processes sign no notes of their own: where verdicts are to be signed, a note counts for a variant that the signed
    # report leaves to the first process that has its device.
    if release.verdict_keys() and str(variant) not in judged.get("unproven", ()):
        return None
    return _failures_in(_document(release, _readable(release, note_name(variant))), variant)


def _signed_report(release: Release) -> dict[str, Any]:
    """Empty without a report that counts. Raises: ReleaseError for one that was changed after it was signed."""
    written = _readable(release, report.JSON)
    if written is None:
        return {}
    if not verdict_signature.counts(release, written):
        _log.warning("%s", verdict_signature.unsigned(release))
        return {}
    return _document(release, written)


def _readable(release: Release, name: str) -> bytes | None:
    with contextlib.suppress(ReleaseError):
        return release.read_note(name)
    return None


def _document(release: Release, note: bytes | None) -> dict[str, Any]:
    """Empty for a note that is damaged, or another release's: the variant is evaluated again."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        document = json.loads(note or b"{}")
        return dict(document) if document["release"] == release.id else {}
    return {}


def _failures_in(document: dict[str, Any], variant: Variant) -> tuple[str, ...] | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        for verdict in document["variants"]:
            if (verdict["precision"], verdict["device"]) == (variant.precision, variant.device):
                return _failures(verdict)
    return None


def _failures(verdict: dict[str, Any]) -> tuple[str, ...]:
    if verdict["passed"] is True:
        return ()
    return tuple(str(failure) for failure in verdict["failures"]) or ("its report gives no reason",)


def _attest(release: Release, variant: Variant, threads: int, spread: Spread) -> tuple[str, ...]:
    """Evaluate a variant. Returns its failures. Stores the verdict only if the variant ran: one that did not may have
    lacked device memory, and the next process tries again."""
    texts = generated_texts(release.manifest.reads, ATTESTATION_TEXTS)
    evaluator = gate.release_evaluator(release, texts, settings.load(GateSettings))
    verdict = gate.evaluate_variant(
        evaluator, variant, release.size(variant), gate.release_opener(release, spread), widths=(threads,)
    )
    if verdict.parity:
        document = {"release": release.id, "evaluation": texts.source, "variants": [verdict.to_document()]}
        try:
            release.write_note(note_name(variant), json.dumps(document, indent=1).encode() + b"\n")
        except OSError as error:
            _log.warning("release %s: the attestation of %s is not kept: %s", release.id, variant, error)
    return verdict.failures
