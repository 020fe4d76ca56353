"""The manifest of a release, and the derivation of its id from its bytes."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from shared_model.encoding import InputSpec
from shared_model.errors import ReleaseError
from shared_model.heads import DEFAULT_HEAD, Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.types import Device, Precision

#: Written last into a release's folder: a folder that has it is complete.
FILE = "manifest.json"
FORMAT = 2

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_ID = re.compile(rf"({_NAME.pattern})-[0-9a-f]{{12}}")
_FILE = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)?\.[a-z]+")
_NOTE = re.compile(r"[a-z0-9_-]+\.[a-z]+")


@dataclass(frozen=True)
class Variant:
    """`files` maps the name an engine asks for to a path in the release."""

    precision: Precision
    device: Device
    files: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.precision}/{self.device}"


@dataclass(frozen=True)
class Facts:
    """The properties of a release beside its bytes, as its builder knows them.

    parent: sha256 of the checkpoint. calibration: sha256 of the calibration texts. quantisation: description of the
    recipe that made the INT8 variant. output: of the first head, whose name is `head`; further: the other heads.
    """

    name: str
    parent: str
    output: OutputSpec
    reads: InputSpec
    calibration: str
    quantisation: str
    variants: tuple[Variant, ...]
    head: str = field(default=DEFAULT_HEAD, kw_only=True)
    further: tuple[HeadSpec, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        # Raises ValueError for names that cannot be.
        Heads.of(self.output, self.head, self.further)

    @property
    def heads(self) -> Heads:
        return Heads.of(self.output, self.head, self.further)


#: Fields, of outputs too, that are left out of the file, and so out of the id, where they have these values: releases
#: that were built before there were such fields keep their ids.
_LATER: Mapping[str, Any] = {
    "head": DEFAULT_HEAD,
    "further": (),
    "temperature": 1.0,
    "abstain_below": None,
    "abstain_on": (),
}


@dataclass(frozen=True)
class Manifest(Facts):
    """Everything about a release except its measurements: reports lie outside the id.

    files: path → sha256 of every file of the release except the manifest.
    """

    files: Mapping[str, str]

    @property
    def labels(self) -> tuple[str, ...]:
        return self.output.names

    @cached_property
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
        def known(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
            return {name: value for name, value in fields if name not in _LATER or _LATER[name] != value}

        document = {"format": FORMAT, **asdict(self, dict_factory=known)}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def parse(raw: bytes, expected_id: str) -> Manifest:
    """Read a manifest and verify that its bytes match its id. Raises: ReleaseError."""
    try:
        document: dict[str, Any] = json.loads(raw)
        if document.pop("format") != FORMAT:
            raise ReleaseError(f"release {expected_id}: {FILE} has a format this version of Tandem does not read")
        declared = document.pop("id")
        manifest = _manifest(document)
        actual, canonical = manifest.id, manifest.to_json()
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ReleaseError(f"release {expected_id}: {FILE} is damaged; copy the release again") from error
    if not declared == expected_id == actual:
        raise ReleaseError(f"release {expected_id}: {FILE} does not match its id; copy the release again")
    if raw != canonical:
        raise ReleaseError(f"release {expected_id}: {FILE} was edited; copy the release again")
    check_paths(manifest)
    return manifest


def _manifest(document: dict[str, Any]) -> Manifest:
    """Build a manifest from parsed JSON, and check the types that other code relies on."""
    reads = InputSpec(**document.pop("reads"))
    if (type(reads.max_tokens), type(reads.pairs), type(reads.types)) != (int, bool, bool) or reads.max_tokens < 1:
        raise ValueError(reads)
    return Manifest(
        output=_output(document.pop("output")),
        further=tuple(HeadSpec(_text(head["name"]), _output(head["output"])) for head in document.pop("further", ())),
        reads=reads,
        variants=tuple(
            Variant(Precision(variant["precision"]), Device(variant["device"]), _texts(variant["files"]))
            for variant in document.pop("variants")
        ),
        files=_texts(document.pop("files")),
        **_texts(document),
    )


def _output(document: Mapping[str, Any]) -> OutputSpec:
    temperature, below = document.get("temperature", 1.0), document.get("abstain_below")
    if not isinstance(temperature, float) or not isinstance(below, float | None):
        raise TypeError(document)
    names, on = (tuple(map(_text, given)) for given in (document["names"], document.get("abstain_on", ())))
    return OutputSpec(OutputKind(document["kind"]), names, int(document["width"]), temperature, below, on)


def _texts(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in document.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def check_paths(manifest: Manifest) -> None:
    """Raises: ReleaseError for a path outside the release, or one that a variant needs and the release lacks."""
    if bad := [path for path in manifest.files if not _FILE.fullmatch(path) or path == FILE]:
        raise ReleaseError(f"release {manifest.id}: {bad[0]!r} is not a file name inside a release")
    needed = [path for variant in manifest.variants for path in variant.files.values()]
    if missing := [path for path in needed if path not in manifest.files]:
        raise ReleaseError(f"release {manifest.id}: a variant needs {missing[0]!r}, which the release does not hold")


def check_note(manifest: Manifest, name: str) -> str:
    """Raises: ReleaseError for a note name outside the folder, or equal to one of the release's files."""
    if not _NOTE.fullmatch(name) or name == FILE or name in manifest.files:
        raise ReleaseError(f"release {manifest.id}: {name!r} cannot be the name of a note")
    return name


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ReleaseError(f"release name {name!r}: use 1 to 48 of a-z, 0-9 and '-', not '-' at either end")
    return name


def name_of(release_id: str) -> str:
    """The name part of an id. Raises: ReleaseError if the text is not an id."""
    match = _ID.fullmatch(release_id)
    if not match:
        raise ReleaseError(f"{release_id!r} is not a release id (NAME-12 hex digits)")
    return match.group(1)


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
