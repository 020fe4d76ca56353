"""What a release says of itself, and how its id follows from its bytes."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shared_model.errors import ReleaseError
from shared_model.types import Device, Precision

FILE = "manifest.json"
FORMAT = 1

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_ID = re.compile(rf"({_NAME.pattern})-[0-9a-f]{{12}}")
_FILE = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)?\.[a-z]+")


@dataclass(frozen=True)
class Variant:
    """`files` maps the name an engine asks for to a path in the release."""

    precision: Precision
    device: Device
    files: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.precision}/{self.device}"


@dataclass(frozen=True)
class Manifest:
    """Everything about a release but its measurements, which are reports and lie outside the id.

    parent: sha256 of the encoder's checkpoint. calibration: sha256 of the calibration texts.
    files: path → sha256 of every file of the release but this one.
    """

    name: str
    parent: str
    labels: tuple[str, ...]
    max_tokens: int
    calibration: str
    variants: tuple[Variant, ...]
    files: Mapping[str, str]

    @property
    def id(self) -> str:
        return f"{self.name}-{hashlib.sha256(self._body()).hexdigest()[:12]}"

    def variant(self, precision: Precision, device: Device) -> Variant:
        for variant in self.variants:
            if (variant.precision, variant.device) == (precision, device):
                return variant
        raise ReleaseError(f"release {self.id} has no {precision} variant for {device}")

    def to_json(self) -> bytes:
        return json.dumps({"id": self.id, **json.loads(self._body())}, indent=1).encode() + b"\n"

    def _body(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()


def parse(raw: bytes, expected_id: str) -> Manifest:
    """Read a manifest and prove that its contents are those its id names. Raises: ReleaseError."""
    try:
        document: dict[str, Any] = json.loads(raw)
        declared = document.pop("id")
        if document.pop("format") != FORMAT:
            raise ReleaseError(f"release {expected_id}: {FILE} has a format this version of Tandem does not read")
        variants = tuple(
            Variant(Precision(v["precision"]), Device(v["device"]), dict(v["files"])) for v in document.pop("variants")
        )
        labels, files = tuple(document.pop("labels")), dict(document.pop("files"))
        manifest = Manifest(labels=labels, variants=variants, files=files, **document)
        actual = manifest.id
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReleaseError(f"release {expected_id}: {FILE} is damaged") from error
    if not declared == expected_id == actual:
        raise ReleaseError(f"release {expected_id}: {FILE} does not match its id")
    check_paths(manifest)
    return manifest


def check_paths(manifest: Manifest) -> None:
    """Raises: ReleaseError for a path that leaves the release, or that a variant needs and the release has not."""
    if bad := [path for path in manifest.files if not _FILE.fullmatch(path)]:
        raise ReleaseError(f"release {manifest.id}: {bad[0]!r} is not a file name inside a release")
    needed = [path for variant in manifest.variants for path in variant.files.values()]
    if missing := [path for path in needed if path not in manifest.files]:
        raise ReleaseError(f"release {manifest.id}: a variant needs {missing[0]!r}, which the release does not hold")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ReleaseError(f"release name {name!r}: use 1 to 48 of a-z, 0-9 and '-', not '-' at either end")
    return name


def name_of(release_id: str) -> str:
    """The name inside an id. Raises: ReleaseError when the text is no id at all."""
    match = _ID.fullmatch(release_id)
    if not match:
        raise ReleaseError(f"{release_id!r} is not a release id (NAME-12 hex digits)")
    return match.group(1)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
