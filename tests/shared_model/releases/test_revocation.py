"""A revoked release is opened by no process that serves, promotes or scores."""

from pathlib import Path

import pytest

from shared_model.errors import ReleaseError, SettingError
from shared_model.releases import revocation
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests.realtime_service.rollout import tiny_releases

A, B = (f"small-{digit * 12}" for digit in "ab")


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "revoked.txt"
    path.write_text(f"# leaked training data\n{A}  # 2026-11-23\n\n")
    return path


def test_ids_are_named_by_comma_or_in_a_file(listed: Path) -> None:
    for revoked in (A, f"{A}, small-cccccccccccc", str(listed)):
        with pytest.raises(ReleaseError, match=f"release {A} is revoked by TANDEM_REVOKED"):
            revocation.check(A, revoked)
        revocation.check(B, revoked)
    revocation.check(A, "")


def test_a_file_that_cannot_be_used_lets_no_release_pass(listed: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"TANDEM_REVOKED=.*: neither ids of releases, by comma, nor a file"):
        revocation.check(B, str(tmp_path / "missing"))
    listed.write_text("not an id")
    with pytest.raises(SettingError, match="'not an id' is no id of a release"):
        revocation.check(B, str(listed))


def test_a_store_with_settings_does_not_open_it(tmp_path: Path) -> None:
    plain = Store(tmp_path)
    one, other = (tiny_releases.seal(plain, name, label) for label, name in enumerate(("one", "other")))
    store = Store.from_settings(StateSettings(releases=str(tmp_path), state=tmp_path, revoked=one.id))
    with pytest.raises(ReleaseError, match="is revoked"):
        store.open(one.id)
    assert store.open(other.id).id == other.id
