"""Where trusted keys are set, only a release that one of them signed is opened."""

import base64
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from batch_job.scoring.models import open_model
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from shared_model.errors import BadInput, ReleaseError, SettingError
from shared_model.releases import manifest, signature
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust import ed25519
from shared_model.types import Device
from tests.shared_model import small_release

PRIVATE, PUBLIC_LINE = ed25519.generate("release")
OTHER_PRIVATE, OTHER_LINE = ed25519.generate("release")
OURS = (base64.b64decode(PUBLIC_LINE.split()[0]),)
THEIRS = (base64.b64decode(OTHER_LINE.split()[0]),)


@pytest.fixture
def small(tmp_path: Path) -> Release:
    return small_release.seal(Store(tmp_path))


def sign(release: Release, private: bytes = PRIVATE) -> bytes:
    """Add a signature; returns the note."""
    _, note = signature.sign(release.manifest, release.read_note(signature.NOTE), private, "test key")
    release.write_note(signature.NOTE, note)
    return note


def test_a_signed_release_opens_and_an_unsigned_one_where_nobody_asks(small: Release, tmp_path: Path) -> None:
    Store(tmp_path).open(small.id)
    sign(small)
    Store(tmp_path, OURS).open(small.id).verify()
    Store(tmp_path, THEIRS + OURS).open(small.id).verify()


def test_one_of_several_signatures_is_enough(small: Release, tmp_path: Path) -> None:
    sign(small, OTHER_PRIVATE)
    assert len(json.loads(sign(small))) == 2
    for trusted in (OURS, THEIRS, OURS + THEIRS):
        Store(tmp_path, trusted).open(small.id)


def unsigned(small: Release) -> None:
    pass


def emptied(small: Release) -> None:
    small.write_note(signature.NOTE, b"{}")


def by_another_key(small: Release) -> None:
    sign(small, OTHER_PRIVATE)


def by_another_key_under_our_name(small: Release) -> None:
    (signed,) = json.loads(sign(small, OTHER_PRIVATE)).values()
    small.write_note(signature.NOTE, json.dumps({ed25519.key_id(OURS[0]): signed}).encode())


def replayed(small: Release) -> None:
    """The right signature of another release."""
    other = small_release.seal(Store(small.files.root), calibration="2" * 64)
    small.write_note(signature.NOTE, sign(other))


def changed_by_one_bit(small: Release) -> None:
    ((signer, signed),) = json.loads(sign(small)).items()
    raw = bytearray(base64.b64decode(signed))
    raw[40] ^= 1
    small.write_note(signature.NOTE, json.dumps({signer: base64.b64encode(raw).decode()}).encode())


def no_base64(small: Release) -> None:
    small.write_note(signature.NOTE, json.dumps({ed25519.key_id(OURS[0]): "?"}).encode())


def no_json(small: Release) -> None:
    small.write_note(signature.NOTE, sign(small)[:-3])


def no_signatures(small: Release) -> None:
    small.write_note(signature.NOTE, json.dumps({ed25519.key_id(OURS[0]): 7}).encode())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (unsigned, "is unsigned"),
        (emptied, "is unsigned"),
        (by_another_key, "is signed by [0-9a-f]{16}, which TANDEM_TRUSTED_KEYS lacks"),
        (by_another_key_under_our_name, "the signature by [0-9a-f]{16} is wrong"),
        (replayed, "the signature by [0-9a-f]{16} is wrong"),
        (changed_by_one_bit, "the signature by [0-9a-f]{16} is wrong"),
        (no_base64, "the signature by [0-9a-f]{16} is wrong"),
        (no_json, r"signature\.json is damaged"),
        (no_signatures, r"signature\.json is damaged"),
    ],
)
def test_what_no_trusted_key_signed_is_refused(
    small: Release, tmp_path: Path, spoil: Callable[[Release], None], says: str
) -> None:
    spoil(small)
    with pytest.raises(ReleaseError, match=f"^release {small.id}:? {says}") as raised:
        Store(tmp_path, OURS).open(small.id)
    assert "\n" not in str(raised.value)


def test_a_release_of_the_same_id_and_other_bytes_is_not_signed(small: Release) -> None:
    """Ids are 48 bits; a signature does not hold for another release with the same id."""
    note = sign(small)

    class SameId(manifest.Manifest):
        id = small.id  # type: ignore[assignment]

    facts = {field.name: getattr(small.manifest, field.name) for field in dataclasses.fields(small.manifest)}
    assert signature.check(SameId(**facts), note, OURS)
    with pytest.raises(ReleaseError, match="is wrong"):
        signature.check(SameId(**facts | {"calibration": "2" * 64}), note, OURS)


def test_sealing_needs_no_signature(tmp_path: Path) -> None:
    """A release is signed after it was built."""
    sealed = small_release.seal(Store(tmp_path, OURS))
    sign(sealed)
    assert small_release.seal(Store(tmp_path, OURS)).id == Store(tmp_path, OURS).open(sealed.id).id


def test_executors_refuse_with_the_drivers_keys(small: Release, tmp_path: Path) -> None:
    keys = tmp_path / "trusted"
    keys.write_bytes(PUBLIC_LINE)
    state = StateSettings(releases=str(tmp_path), trusted_keys=str(keys))
    options = ScoringOptions.from_settings(state, NightlySettings(), small.id, Device.CPU)
    keys.unlink()
    with pytest.raises(ReleaseError, match="is unsigned"):
        open_model(options, threads=1)
    sign(small)
    options.store().open(small.id)


def test_a_file_of_trusted_keys_may_hold_comments(small: Release, tmp_path: Path) -> None:
    keys = tmp_path / "trusted"
    keys.write_bytes(b"# release keys\n\n" + OTHER_LINE + PUBLIC_LINE)
    state = StateSettings(releases=str(tmp_path), trusted_keys=str(keys))
    assert signature.trusted_keys(state) == THEIRS + OURS
    with pytest.raises(ReleaseError, match="is unsigned"):
        Store.from_settings(state).open(small.id)
    sign(small)
    Store.from_settings(state).open(small.id)


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds no key"),
        (b"# only a comment\n", "holds no key"),
        (PUBLIC_LINE + b"c2hvcnQ=\n", "line 2: 'c2hvcnQ=' is no public key"),
        (b"-----BEGIN PUBLIC KEY-----\n", "line 1: '-----BEGIN' is no public key"),
        (b"\xff\xfe\x00", "is no text file of public keys"),
    ],
    ids=["missing", "empty", "comment", "short", "pem", "binary"],
)
def test_a_wrong_file_of_trusted_keys_is_a_wrong_setting(tmp_path: Path, contents: bytes | None, says: str) -> None:
    keys = tmp_path / "trusted"
    if contents is not None:
        keys.write_bytes(contents)
    with pytest.raises(SettingError) as raised:
        Store.from_settings(StateSettings(releases=str(tmp_path), trusted_keys=str(keys)))
    assert str(raised.value).startswith(f"TANDEM_TRUSTED_KEYS={keys}: {says}")
    assert "\n" not in str(raised.value)


def foreign_key() -> bytes:
    """A private key that cannot sign."""
    return X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.mark.parametrize(
    ("private", "says"),
    [(b"", "no private key"), (PUBLIC_LINE, "no private key"), (foreign_key(), "no ed25519 key")],
    ids=["empty", "public", "foreign"],
)
def test_only_an_ed25519_key_signs(small: Release, private: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=f"^test key: is {says}"):
        sign(small, private)
    assert small.read_note(signature.NOTE) is None
