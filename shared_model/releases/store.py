"""Releases on disk: `ROOT/<name>/<id>/`. What is loaded is what was verified: each file is read once."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared_model.devices import HALF_PRECISION
from shared_model.encoding import Encoder
from shared_model.engine import Engine, open_engine
from shared_model.errors import ReleaseError, UnknownRelease
from shared_model.releases import manifest as manifests
from shared_model.releases.manifest import Manifest, Variant
from shared_model.types import Device, Precision

REPORT = "report.json"


@dataclass(frozen=True)
class Release:
    """An opened release. Files are read, verified and handed on when asked for."""

    folder: Path
    manifest: Manifest

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def labels(self) -> tuple[str, ...]:
        return self.manifest.labels

    def read(self, path: str) -> bytes:
        """Verified bytes of one file. Raises: ReleaseError naming the file."""
        if path not in self.manifest.files:
            raise ReleaseError(f"release {self.id} holds no {path}")
        data = _read(self.folder / path, f"release {self.id}: {path}")
        if manifests.sha256(data) != self.manifest.files[path]:
            raise ReleaseError(f"release {self.id}: {path} does not match its sha256; copy the release again")
        return data

    def encoder(self) -> Encoder:
        return Encoder(self.read("tokenizer.json"), self.manifest.max_tokens, self.id)

    def engine(self, precision: Precision, device: Device, threads: int) -> Engine:
        variant = self.manifest.variant(precision, device)
        files = {name: self.read(path) for name, path in variant.files.items()}
        return open_engine(precision, device, files, threads)

    def half_precision_engine(self, device: Device, threads: int) -> Engine:
        """FP16 on CUDA, BF16 on CPU: what large batches run in."""
        return self.engine(HALF_PRECISION[device], device, threads)

    def verify(self) -> None:
        """Read every file. Raises: ReleaseError naming the first that is wrong."""
        for path in self.manifest.files:
            self.read(path)


def open_release(root: Path, release_id: str) -> Release:
    """Raises: UnknownRelease if it is not there, ReleaseError if its manifest is not the one its id names."""
    folder = root / manifests.name_of(release_id) / release_id
    if not folder.is_dir():
        raise UnknownRelease(f"release {release_id} is not in {root}; build it or copy it there")
    return Release(folder, manifests.parse(_read(folder / manifests.FILE, f"release {release_id}"), release_id))


def list_releases(root: Path) -> list[str]:
    """Ids, oldest first."""
    manifest_files = sorted(root.glob(f"*/*/{manifests.FILE}"), key=lambda path: path.stat().st_mtime)
    return [path.parent.name for path in manifest_files if not path.parent.name.startswith(".")]


def seal(
    root: Path,
    files: Mapping[str, bytes],
    variants: Iterable[Variant],
    *,
    name: str,
    parent: str,
    labels: tuple[str, ...],
    max_tokens: int,
    calibration: str,
) -> Release:
    """Write a release in one rename: a reader sees all of it or nothing."""
    sealed = Manifest(
        name=manifests.check_name(name),
        parent=parent,
        labels=labels,
        max_tokens=max_tokens,
        calibration=calibration,
        variants=tuple(variants),
        files={path: manifests.sha256(data) for path, data in sorted(files.items())},
    )
    manifests.check_paths(sealed)
    final = root / name / sealed.id
    if not final.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
        _write(final, {**files, manifests.FILE: sealed.to_json()})
    return open_release(root, sealed.id)


def _write(final: Path, files: Mapping[str, bytes]) -> None:
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
    try:
        building.chmod(0o755)
        for path, data in files.items():
            target = building / path
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
        building.rename(final)
    except OSError:
        # Another builder of the same bytes may have been first; its release is ours.
        if not final.exists():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _read(path: Path, what: str) -> bytes:
    try:
        if path.is_symlink():
            raise ReleaseError(f"{what} is a link; a release holds its files itself")
        return path.read_bytes()
    except OSError as error:
        raise ReleaseError(f"{what} cannot be read: {error.strerror}") from error
