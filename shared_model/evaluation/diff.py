"""Differences between two releases, as text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared_model.encoding import InputSpec
from shared_model.evaluation import judged
from shared_model.evaluation.judged import Judged, Measured, MeasuredHead
from shared_model.heads import Heads
from shared_model.output import OutputSpec
from shared_model.releases.manifest import Manifest
from shared_model.releases.store import Release

#: Labels that are named unless all are requested.
LABELS_SHOWN = 3


@dataclass(frozen=True)
class Difference:
    """`subject`: the property, one word. `words`: the change, "old → new"."""

    subject: str
    words: str


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call of a variant in both reports; `call` such as "1×32 on 2 threads"."""

    variant: str
    call: str
    old: float
    new: float


def differences(old: Release, new: Release, labels_shown: int | None = LABELS_SHOWN) -> list[Difference]:
    """All differences except latencies: properties first, then measurements. `labels_shown`: None for all. Raises:
    ReleaseError."""
    found = list(manifest_differences(old.manifest, new.manifest, labels_shown))
    for path in sorted({*old.manifest.files, *new.manifest.files}):
        if old.manifest.files.get(path) != new.manifest.files.get(path):
            found.append(Difference("files", f"{path}: {_file(old, path)} → {_file(new, path)}"))
    before, after = judged.read(old), judged.read(new)
    if before and after:
        found += report_differences(before, after)
    return found


def timings(old: Release, new: Release) -> list[Timing]:
    """Calls that both reports timed, unless all took equally long. Raises: ReleaseError."""
    before, after = judged.read(old), judged.read(new)
    if not before or not after:
        return []
    found = [
        Timing(name, call, milliseconds, after.variants[name].latency[call])
        for name, measured in before.variants.items()
        if name in after.variants
        for call, milliseconds in measured.latency.items()
        if call in after.variants[name].latency
    ]
    return found if any(f"{one.old:.2f}" != f"{one.new:.2f}" for one in found) else []


def reads_in_words(reads: InputSpec) -> str:
    what = "pairs of texts" if reads.pairs else "texts"
    types = ", with token types" if reads.types else ""
    return f"{what} of at most {reads.max_tokens} tokens{types}"


def manifest_differences(old: Manifest, new: Manifest, labels_shown: int | None = None) -> Iterator[Difference]:
    """Differences in everything but the files."""
    yield from _changed("name", old.name, new.name)
    yield from _changed("parent", _short(old.parent), _short(new.parent))
    yield from _changed("output", f"{old.output.kind}/{old.output.width}", f"{new.output.kind}/{new.output.width}")
    yield from _label_differences("labels", old.labels, new.labels, labels_shown)
    yield from _calibration_differences("", old.output, new.output)
    yield from _head_differences(old.heads, new.heads, labels_shown)
    yield from _changed("reads", reads_in_words(old.reads), reads_in_words(new.reads))
    yield from _changed("calibration", _short(old.calibration), _short(new.calibration))
    yield from _changed("quantisation", old.quantisation, new.quantisation)
    before, after = ({str(v): sorted(v.files.items()) for v in manifest.variants} for manifest in (old, new))
    for name in before | after:
        if name not in after:
            yield Difference("variants", f"{name} is gone")
        elif name not in before:
            yield Difference("variants", f"{name} is new")
        elif before[name] != after[name]:
            yield Difference("variants", f"{name} is opened from other files")


def report_differences(old: Judged, new: Judged) -> Iterator[Difference]:
    """Differences in the measurements, except latencies, of variants that both have."""
    yield from _changed("gate", *("passed" if found.passed else "refused" for found in (old, new)))
    for head, error in old.eces.items():
        if head in new.eces:
            yield from _changed(f"{head} ece".lstrip(), f"{error:.4f}", f"{new.eces[head]:.4f}")
    for name, measured in old.variants.items():
        if name in new.variants and (words := "; ".join(_measured_differences(measured, new.variants[name]))):
            yield Difference(name, words)


def _head_differences(old: Heads, new: Heads, shown: int | None) -> Iterator[Difference]:
    yield from _changed("heads", *(", ".join(spec.name for spec in heads.specs) for heads in (old, new)))
    before, after = ({spec.name: spec.output for spec in heads.further} for heads in (old, new))
    for name in [name for name in before if name in after]:
        kinds = (f"{output.kind}/{output.width}" for output in (before[name], after[name]))
        yield from _changed(f"head {name}", *kinds)
        yield from _label_differences(f"head {name}", before[name].names, after[name].names, shown)
        yield from _calibration_differences(f"{name} ", before[name], after[name])


def _calibration_differences(head: str, old: OutputSpec, new: OutputSpec) -> Iterator[Difference]:
    yield from _changed(f"{head}temperature", f"{old.temperature:g}", f"{new.temperature:g}")
    yield from _changed(f"{head}abstaining", old.abstaining, new.abstaining)


def _label_differences(
    subject: str, old: tuple[str, ...], new: tuple[str, ...], shown: int | None
) -> Iterator[Difference]:
    if added := [label for label in new if label not in old]:
        yield Difference(subject, f"{len(added)} added: {_some(added, shown)}")
    if removed := [label for label in old if label not in new]:
        yield Difference(subject, f"{len(removed)} removed: {_some(removed, shown)}")
    if [label for label in old if label in new] != [label for label in new if label in old]:
        yield Difference(subject, "in another order")


def _some(labels: Sequence[str], shown: int | None) -> str:
    more = "" if shown is None or len(labels) <= shown else ", … (--all names them)"
    return ", ".join(labels[:shown]) + more


def _file(release: Release, path: str) -> str:
    if path not in release.manifest.files:
        return "none"
    return f"{_short(release.manifest.files[path])}, {release.file_size(path):,} bytes"


def _short(sha256: str) -> str:
    return f"sha256 {sha256[:12]}…"


def _measured_differences(old: Measured, new: Measured) -> Iterator[str]:
    if old.compiled != new.compiled:
        yield f"compiled as {old.compiled} → {new.compiled}"
    yield from _share_differences(old, new)
    for name in old.heads:
        if name in new.heads:
            yield from (f"{name}: {words}" for words in _share_differences(old.heads[name], new.heads[name]))


def _share_differences(old: Measured | MeasuredHead, new: Measured | MeasuredHead) -> Iterator[str]:
    for what, before, after in (
        ("agreement", old.agreement, new.agreement),
        ("where fp32 is sure", old.clear_agreement, new.clear_agreement),
        ("accuracy", old.accuracy, new.accuracy),
    ):
        if before is not None and after is not None and before != after:
            yield f"{what} {before:.2%} → {after:.2%}"


def _changed(subject: str, old: str, new: str) -> Iterator[Difference]:
    if old != new:
        yield Difference(subject, f"{old} → {new}")
