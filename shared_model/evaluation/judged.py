"""Reads a release's report: whether it may be promoted, and the measurements of its variants."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared_model.errors import ReleaseError
from shared_model.evaluation import report
from shared_model.releases import verdict_signature
from shared_model.releases.store import Release


@dataclass(frozen=True)
class MeasuredHead:
    """Shares of a further head of a variant, as in `Measured`."""

    agreement: float | None
    clear_agreement: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Measured:
    """One variant as the gate measured it; None for values that were not measured.

    `compiled`: the precision that ran. Shares: `agreement` with fp32, `clear_agreement` where fp32 is certain,
    `accuracy`, all of the first head; `heads`: of the others, by name. `latency`: milliseconds by call, such as "1×32
    on 2 threads".
    """

    compiled: str | None
    agreement: float | None
    clear_agreement: float | None
    accuracy: float | None
    latency: Mapping[str, float]
    failures: tuple[str, ...]
    heads: Mapping[str, MeasuredHead] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """`variants` by name, such as "int8/cpu". `unproven`: variants whose device the gate's machine lacks.
    `release_failures`: failures of the release itself, beside those of its variants. `eces`: expected
    calibration error of fp32 at the release's temperature by head, "" for the first, of those that were measured."""

    passed: bool
    variants: Mapping[str, Measured]
    unproven: tuple[str, ...]
    release_failures: tuple[str, ...] = ()
    eces: Mapping[str, float] = field(default_factory=dict)

    def unfit(self, needed: Collection[str]) -> list[str]:
        """Failures that prevent a deployment whose lanes run the variants `needed`, such as "int8/cpu". A variant whose
        device the gate's machine lacks is left to the first process that has it."""
        missing = [it for it in needed if it not in self.variants and it not in self.unproven]
        # All are compared with the reference.
        wanted = {*needed, "fp32/cpu"}
        refused = (f"{name} {why}" for name, it in self.variants.items() if name in wanted for why in it.failures)
        return [*self.release_failures, *(f"it has no {name} variant" for name in sorted(missing)), *refused]

    @property
    def accuracy(self) -> float | None:
        """The accuracy of fp32, the reference; None if the texts had no labels."""
        reference = self.variants.get("fp32/cpu")
        return reference.accuracy if reference else None

    @property
    def ece(self) -> float | None:
        """That of the first head."""
        return self.eces.get("")

    @property
    def accuracies(self) -> dict[str, float]:
        """That of the further heads with labelled texts, by name."""
        reference = self.variants.get("fp32/cpu")
        heads = reference.heads.items() if reference else ()
        return {name: head.accuracy for name, head in heads if head.accuracy is not None}

    @property
    def failures(self) -> list[str]:
        of_variants = (f"{name} {failure}" for name, found in self.variants.items() for failure in found.failures)
        return [*self.release_failures, *of_variants]


def read(release: Release) -> Judged | None:
    """The report, signed or not, to be shown; None if the release was not evaluated. Raises: ReleaseError for a damaged
    or foreign report."""
    return _parsed(release, release.read_note(report.JSON))


def read_signed(release: Release) -> Judged | None:
    """As `read`, to decide by it. Raises: ReleaseError also for a report that no key that counts here has signed."""
    note = release.read_note(report.JSON)
    if note is not None and not verdict_signature.counts(release, note):
        raise ReleaseError(verdict_signature.unsigned(release))
    return _parsed(release, note)


def _parsed(release: Release, note: bytes | None) -> Judged | None:
    if note is None:
        return None
    try:
        document = json.loads(note)
        if document["release"] != release.id:
            raise ReleaseError(f"release {release.id}: {report.JSON} is of {document['release']!r}; judge it again")
        variants = {f"{v['precision']}/{v['device']}": _measured(v) for v in document["variants"]}
        # Reports of earlier versions have no failures of the release itself.
        release_failures = tuple(document.get("failures", ()))
        eces = dict(_eces(document))
        return Judged(document["passed"] is True, variants, tuple(document["unproven"]), release_failures, eces)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReleaseError(f"release {release.id}: {report.JSON} is damaged; judge it again") from error


def _eces(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Reports of earlier versions have measured none."""
    for name, head in [("", document), *((head["head"], head) for head in document.get("heads", ()))]:
        if calibration := (head.get("quality") or {}).get("calibration"):
            yield name, float(calibration["ece_after"])


def _measured(variant: Mapping[str, Any]) -> Measured:
    return Measured(
        compiled=variant["compiled"],
        agreement=variant["agreement"],
        clear_agreement=variant["clear_agreement"],
        accuracy=variant["accuracy"],
        latency={_timed(latency): float(latency["milliseconds"]) for latency in variant["latency"]},
        failures=tuple(variant["failures"]),
        heads={
            head["head"]: MeasuredHead(head["agreement"], head["clear_agreement"], head["accuracy"])
            # Reports of earlier versions know one head.
            for head in variant.get("heads", ())
        },
    )


def _timed(latency: Mapping[str, Any]) -> str:
    threads = latency["threads"]
    return f"{latency['rows']}×{latency['tokens']} on {threads} thread{'' if threads == 1 else 's'}"
