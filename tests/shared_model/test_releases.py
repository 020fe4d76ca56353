"""A release proves itself: what is opened is what was built, or an error names what is wrong."""

import hashlib
import json
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from shared_model.errors import ReleaseError, UnknownRelease
from shared_model.releases import manifest, store
from shared_model.releases.manifest import Manifest, Variant
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

FILES = {
    "tokenizer.json": b'{"model": {}}',
    "config.json": b"[1, 2, 3]",
    "int8/model.bin": bytes(range(256)),
    "int8/model.xml": b"<net/>",
}
VARIANTS = (Variant(Precision.INT8, Device.CPU, {"model.bin": "int8/model.bin", "model.xml": "int8/model.xml"}),)
FACTS: dict[str, Any] = {
    "name": "small",
    "parent": "0" * 64,
    "labels": ("yes", "no"),
    "max_tokens": 8,
    "calibration": "1" * 64,
}


def seal(root: Path, files: Mapping[str, bytes] = FILES, **changes: Any) -> Release:
    return store.seal(root, files, VARIANTS, **FACTS | changes)


@pytest.fixture
def small(tmp_path: Path) -> Release:
    return seal(tmp_path)


def test_default_release_is_as_built(release: Release) -> None:
    release.verify()
    assert {(v.precision, v.device) for v in release.manifest.variants} == {
        (Precision.FP32, Device.CPU),
        (Precision.BF16, Device.CPU),
        (Precision.INT8, Device.CPU),
        (Precision.FP16, Device.CUDA),
    }


def test_same_bytes_same_id(tmp_path: Path) -> None:
    assert seal(tmp_path / "one").id == seal(tmp_path / "two", dict(reversed(FILES.items()))).id


@pytest.mark.parametrize(
    "change", [{"labels": ("no", "yes")}, {"max_tokens": 9}, {"parent": "2" * 64}, {"calibration": "3" * 64}]
)
def test_other_facts_other_id(tmp_path: Path, small: Release, change: dict[str, Any]) -> None:
    assert seal(tmp_path, **change).id != small.id


@pytest.mark.parametrize("path", FILES)
def test_other_bytes_other_id(tmp_path: Path, small: Release, path: str) -> None:
    assert seal(tmp_path, FILES | {path: FILES[path] + b" "}).id != small.id


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("position", [0, 0.5, 1])
def test_flipped_byte_is_refused_by_name(small: Release, path: str, position: float) -> None:
    damaged = bytearray(FILES[path])
    damaged[int(position * (len(damaged) - 1))] ^= 0x01
    (small.folder / path).write_bytes(damaged)
    assert_refused(small, path)


@pytest.mark.parametrize("path", FILES)
def test_truncated_file_is_refused_by_name(small: Release, path: str) -> None:
    (small.folder / path).write_bytes(FILES[path][:-1])
    assert_refused(small, path)


def test_missing_file_is_refused_by_name(small: Release) -> None:
    (small.folder / "config.json").unlink()
    assert_refused(small, "config.json")


def test_link_is_refused_by_name_even_to_the_right_bytes(small: Release, tmp_path: Path) -> None:
    elsewhere = (small.folder / "config.json").rename(tmp_path / "elsewhere.json")
    (small.folder / "config.json").symlink_to(elsewhere)
    assert_refused(small, "config.json")


def test_unlisted_file_is_not_read(small: Release) -> None:
    (small.folder / "extra.json").write_bytes(b"{}")
    with pytest.raises(ReleaseError, match=r"extra\.json"):
        small.read("extra.json")


def assert_refused(release: Release, path: str) -> None:
    reopened = store.open_release(release.folder.parents[1], release.id)
    with pytest.raises(ReleaseError, match=path):
        reopened.verify()


def test_engine_of_a_damaged_release_is_never_compiled(small: Release) -> None:
    (small.folder / "int8/model.bin").write_bytes(b"other weights")
    with pytest.raises(ReleaseError, match=r"int8/model\.bin does not match"):
        small.engine(Precision.INT8, Device.CPU, threads=1)


def test_manifest_damaged_anywhere_is_refused_or_reads_the_same(tmp_path: Path, small: Release) -> None:
    path = small.folder / manifest.FILE
    raw = path.read_bytes()
    damaged = [raw[:at] + bytes([raw[at] ^ 0x04]) + raw[at + 1 :] for at in range(len(raw))]
    damaged += [raw[:end] for end in range(len(raw))]
    read_the_same = 0
    for contents in damaged:
        path.write_bytes(contents)
        with suppress(ReleaseError):
            assert store.open_release(tmp_path, small.id).manifest == small.manifest
            read_the_same += 1
    assert read_the_same < 0.05 * len(damaged)  # white space


def test_a_release_under_another_id_is_refused(tmp_path: Path, small: Release) -> None:
    other = f"small-{hashlib.sha256(b'other').hexdigest()[:12]}"
    small.folder.rename(small.folder.with_name(other))
    with pytest.raises(ReleaseError, match="does not match its id"):
        store.open_release(tmp_path, other)


def forge(root: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Write a manifest of any contents whose id is right all the same; returns the id."""
    document = json.loads(seal(root).manifest.to_json())
    del document["id"]
    change(document)
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    forged = f"small-{hashlib.sha256(body).hexdigest()[:12]}"
    (root / "small" / forged).mkdir(exist_ok=True)
    (root / "small" / forged / manifest.FILE).write_text(json.dumps({"id": forged, **document}))
    return forged


def test_forged_manifest_without_a_change_opens(tmp_path: Path) -> None:
    assert store.open_release(tmp_path, forge(tmp_path, lambda document: None)).id


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["files"].update({"../secret.txt": "0" * 64}),
        lambda document: document["files"].update({"/etc/passwd.txt": "0" * 64}),
        lambda document: document["variants"][0]["files"].update({"model.bin": "../../model.bin"}),
        lambda document: document["variants"][0]["files"].update({"model.bin": "config.bin"}),
        lambda document: document["variants"][0].update({"files": ["int8/model.bin"]}),
        lambda document: document.update({"files": ["config.json"]}),
        lambda document: document.update({"format": 2}),
        lambda document: document.update({"surprise": 1}),
    ],
)
def test_forged_manifest_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(ReleaseError):
        store.open_release(tmp_path, forge(tmp_path, change))


@pytest.mark.parametrize(
    "release_id",
    ["", ".", "..", "small", "../small-0123456789ab", "/etc-0123456789ab", "a/b-0123456789ab", "Small-0123456789ab",
     "small-0123456789ag", "small-0123456789ab\n", "small-0123456789abc", "-small-0123456789ab"],
)  # fmt: skip
def test_an_id_cannot_leave_the_root(tmp_path: Path, release_id: str) -> None:
    with pytest.raises(ReleaseError, match="is not a release id"):
        store.open_release(tmp_path, release_id)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", "A", "a" * 49, "-a", "a-", "a\n"])
def test_a_name_cannot_leave_the_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="release name"):
        seal(tmp_path, name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["../out.json", "/out.json", "a/b/c.json", "no-suffix", ".hidden"])
def test_a_file_cannot_leave_the_release(tmp_path: Path, path: str) -> None:
    with pytest.raises(ReleaseError, match="not a file name inside a release"):
        seal(tmp_path / "root", FILES | {path: b""})
    assert list(tmp_path.iterdir()) == []


def test_unknown_release_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnknownRelease, match="build it or copy it there"):
        store.open_release(tmp_path, "small-0123456789ab")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the kernel refuse to write files beyond `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_seal_that_fails_leaves_nothing(tmp_path: Path) -> None:
    large = FILES | {"weights.safetensors": bytes(4096)}
    with largest_file(1024), pytest.raises(OSError, match="File too large"):
        seal(tmp_path, large)
    assert list((tmp_path / "small").iterdir()) == []
    assert store.list_releases(tmp_path) == []
    seal(tmp_path, large).verify()


def test_many_may_seal_the_same_release_at_once(tmp_path: Path) -> None:
    together = Barrier(8)

    def build(_: int) -> Release:
        together.wait()
        return seal(tmp_path, FILES | {"weights.safetensors": bytes(1 << 20)})

    with ThreadPoolExecutor(8) as pool:
        sealed = list(pool.map(build, range(8)))
    assert {r.id for r in sealed} == set(store.list_releases(tmp_path))
    sealed[0].verify()
    assert [path.name for path in (tmp_path / "small").iterdir()] == [sealed[0].id]


def test_releases_are_listed_oldest_first(tmp_path: Path) -> None:
    sealed = [seal(tmp_path, max_tokens=tokens) for tokens in (8, 16, 24)]
    for age, release in enumerate(reversed(sealed)):
        os.utime(release.folder / manifest.FILE, (1_000 - age, 1_000 - age))
    (tmp_path / "small" / f".building-{sealed[0].id}").mkdir()
    assert store.list_releases(tmp_path) == [r.id for r in sealed]


def test_manifest_survives_writing_and_reading(small: Release) -> None:
    read: Manifest = manifest.parse(small.manifest.to_json(), small.id)
    assert read == small.manifest
