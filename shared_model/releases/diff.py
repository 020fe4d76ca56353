"""What differs between two releases, in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shared_model.releases import judged
from shared_model.releases.judged import Judged, Measured
from shared_model.releases.manifest import Manifest
from shared_model.releases.store import Release


@dataclass(frozen=True)
class Difference:
    """`subject`: what differs, one word. `words`: how, "old → new"."""

    subject: str
    words: str


def differences(old: Release, new: Release) -> list[Difference]:
    """Everything that differs, what the releases are before how they were measured. Raises: ReleaseError."""
    found = [*of_manifests(old.manifest, new.manifest), *_of_files(old, new)]
    before, after = judged.read(old), judged.read(new)
    if before and after:
        found += of_reports(before, after)
    return found


def of_manifests(old: Manifest, new: Manifest) -> Iterator[Difference]:
    """All but the files."""
    for subject in ("name", "parent"):
        yield from _changed(subject, getattr(old, subject), getattr(new, subject))
    yield from _changed("output", f"{old.output.kind}/{old.output.width}", f"{new.output.kind}/{new.output.width}")
    yield from _of_labels(old.labels, new.labels)
    yield from _changed("reads", str(old.reads), str(new.reads))
    for subject in ("calibration", "quantisation"):
        yield from _changed(subject, getattr(old, subject), getattr(new, subject))
    yield from _of_variants(old, new)


def of_reports(old: Judged, new: Judged) -> Iterator[Difference]:
    """What was measured of the variants that both have. Machines differ, so latencies compare only on one."""
    yield from _changed("gate", *("passed" if found.passed else "refused" for found in (old, new)))
    for name, measured in old.variants.items():
        if name in new.variants and (words := "; ".join(_of_measured(measured, new.variants[name]))):
            yield Difference(name, words)


def _of_labels(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Difference]:
    if added := [label for label in new if label not in old]:
        yield Difference("labels", f"added: {', '.join(added)}")
    if removed := [label for label in old if label not in new]:
        yield Difference("labels", f"removed: {', '.join(removed)}")
    if [label for label in old if label in new] != [label for label in new if label in old]:
        yield Difference("labels", "in another order")


def _of_variants(old: Manifest, new: Manifest) -> Iterator[Difference]:
    before, after = ({str(v): sorted(v.files.items()) for v in manifest.variants} for manifest in (old, new))
    for name in before | after:
        if name not in after:
            yield Difference("variants", f"{name} is gone")
        elif name not in before:
            yield Difference("variants", f"{name} is new")
        elif before[name] != after[name]:
            yield Difference("variants", f"{name} is opened from other files")


def _of_files(old: Release, new: Release) -> Iterator[Difference]:
    before, after = old.manifest.files, new.manifest.files
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            yield Difference("files", f"{path}: {_file(old, path)} → {_file(new, path)}")


def _file(release: Release, path: str) -> str:
    if path not in release.manifest.files:
        return "none"
    return f"sha256 {release.manifest.files[path][:12]}…, {release.file_size(path):,} bytes"


def _of_measured(old: Measured, new: Measured) -> Iterator[str]:
    if old.compiled != new.compiled:
        yield f"compiled as {old.compiled} → {new.compiled}"
    for what, before, after in (
        ("agreement", old.agreement, new.agreement),
        ("where fp32 is sure", old.clear_agreement, new.clear_agreement),
        ("accuracy", old.accuracy, new.accuracy),
    ):
        if before is not None and after is not None and before != after:
            yield f"{what} {before:.2%} → {after:.2%}"
    if timed := ", ".join(_of_latency(old.latency, new.latency)):
        yield f"ms: {timed}"


def _of_latency(old: Mapping[str, float], new: Mapping[str, float]) -> Iterator[str]:
    for shape, before in old.items():
        if shape in new and f"{before:.2f}" != f"{new[shape]:.2f}":
            yield f"{shape} {before:.2f} → {new[shape]:.2f}"


def _changed(subject: str, old: str, new: str) -> Iterator[Difference]:
    if old != new:
        yield Difference(subject, f"{old} → {new}")
