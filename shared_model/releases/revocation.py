"""Releases that operators have revoked: they are neither loaded, promoted nor scored with, whatever is signed."""

from pathlib import Path

from shared_model.errors import ReleaseError, SettingError
from shared_model.releases import manifest


def check(release_id: str, revoked: str) -> None:
    """`revoked`: TANDEM_REVOKED, ids by comma or a file of them, one a line, which is read each time. Raises:
    ReleaseError for a revoked release; SettingError."""
    if revoked and release_id in _ids(revoked):
        raise ReleaseError(f"release {release_id} is revoked by TANDEM_REVOKED; promote another one")


def _ids(revoked: str) -> set[str]:
    listed = [it.strip() for it in revoked.split(",")]
    if all(map(manifest.is_id, listed)):
        return set(listed)
    try:
        lines = Path(revoked).read_text().splitlines()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "is no text file"
        raise SettingError(f"TANDEM_REVOKED={revoked}: neither ids of releases, by comma, nor a file: {why}") from error
    found = {line.partition("#")[0].strip() for line in lines} - {""}
    if wrong := sorted(it for it in found if not manifest.is_id(it)):
        raise SettingError(f"TANDEM_REVOKED={revoked}: {wrong[0]!r} is no id of a release")
    return found
