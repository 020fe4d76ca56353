"""Where releases lie: a folder or a URL behave alike, and what fails there is one line."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared_model.errors import ReleaseError, SettingError, TandemError, UnknownRelease
from shared_model.objects import url
from shared_model.releases import manifest, pointer
from shared_model.releases.files import Files, LocalFiles, open_files
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests import object_store
from tests.object_store import KEY, Fault, Proxy
from tests.shared_model import small_release
from tests.shared_model.commands import listed
from tests.shared_model.full_disk import largest_file

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(params=["folder", "file", pytest.param("s3", marks=pytest.mark.heavy)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One place as a folder, and behind URLs of two kinds."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    path = tmp_path / "root"
    return str(path) if request.param == "folder" else f"file://{path}"


@pytest.fixture
def files(root: str) -> Files:
    return open_files(root)


def test_what_is_written_is_read(files: Files) -> None:
    files.write("note.json", b"old")
    files.write("note.json", b"a new one")
    files.write("a/b/note.json", b"")
    assert (files.read("note.json"), files.size("note.json")) == (b"a new one", 9)
    assert (files.read("a/b/note.json"), files.size("a/b/note.json")) == (b"", 0)


def test_what_is_not_there_is_file_not_found(files: Files) -> None:
    for look in (files.read, files.size):
        with pytest.raises(FileNotFoundError):
            look("a/b/none.json")


def test_releases_of_every_kind_of_place_are_as_built(root: str) -> None:
    sealed = small_release.seal(Store(root))
    assert Store(root).ids() == [sealed.id]
    opened = Store(root).open(sealed.id)
    opened.verify()
    assert opened.manifest == sealed.manifest
    assert opened.size(small_release.VARIANTS[0]) == sum(
        len(small_release.FILES[path]) for path in small_release.VARIANTS[0].files.values()
    )


def test_the_pointer_lies_beside_the_releases(root: str) -> None:
    store = Store(root)
    promoted = pointer.promote(store, None, small_release.seal(store).id)
    assert pointer.read(Store(root), None) == promoted
    assert store.ids() == [promoted.active]


def test_a_removed_release_is_gone_and_no_other(root: str) -> None:
    store = Store(root)
    kept, removed = small_release.seal(store), small_release.seal(store, quantisation="again")
    report = b"x" * 1000
    removed.write_note("report.json", report)
    size = sum(map(len, small_release.FILES.values())) + len(removed.manifest.to_json()) + len(report)
    assert store.size(removed.id) == size
    assert abs(datetime.now(UTC) - store.built(removed.id)) < timedelta(minutes=5)
    store.remove(removed.id)
    assert Store(root).ids() == [kept.id]
    with pytest.raises(FileNotFoundError):
        store.files.read(f"small/{removed.id}/config.json")
    Store(root).open(kept.id).verify()
    store.remove(kept.id)
    assert Store(root).ids() == []
    assert not list(Path(root).rglob("*"))
    with pytest.raises(ReleaseError, match=f"release {kept.id} cannot be removed: "):
        store.remove(kept.id)


def test_a_half_written_release_is_not_there(root: str) -> None:
    """The state of an interrupted copy: every file except the manifest, which comes last."""
    whole = small_release.seal(Store(root), name="whole")
    for path, data in small_release.FILES.items():
        Store(root).files.write(f"half/half-0123456789ab/{path}", data)
    assert Store(root).ids() == [whole.id]
    with pytest.raises(UnknownRelease, match="half-0123456789ab is not in"):
        Store(root).open("half-0123456789ab")


def test_a_folder_that_could_not_be_written_whole_has_no_manifest(
    s3: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(url.RETRIES, "max_retries", 1)
    object_store.reconnect()
    files = open_files(s3_url)
    s3.inject(Fault.BUSY, 10, path="weights.bin")
    with pytest.raises(OSError, match="SlowDown"):
        files.write_folder("a/a-0123456789ab", {manifest.FILE: b"{}", "z.json": b"", "weights.bin": b""})
    assert files.manifests() == []


def test_what_is_no_release_is_not_listed(root: str) -> None:
    store = Store(root)
    sealed = small_release.seal(store)
    for folder in ("small/backup", "other/" + sealed.id, "small/.building-x", "small/small-0123456789aX"):
        store.files.write(f"{folder}/{manifest.FILE}", b"{}")
    assert store.ids() == [sealed.id]


def test_opening_does_not_list(s3: Proxy, s3_url: str) -> None:
    sealed = small_release.seal(Store(s3_url))
    s3.clear()
    Store(s3_url).open(sealed.id).verify()
    assert s3.seen
    assert not [path for _, path in s3.seen if "list-type" in path]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("nope://host/releases", "TANDEM_RELEASES=nope://host/releases: nope:// is not served: s3://"),
        ("sftp://me:sec@ret@host/releases", "TANDEM_RELEASES=sftp://host/releases: sftp:// is not served"),
        ("s3://me:secret@bucket/a", "TANDEM_RELEASES=s3://bucket/a: credentials come from the environment"),
        ("az://container/releases", "TANDEM_RELEASES=az://container/releases: Generic MicrosoftAzure error: Account"),
    ],
)
def test_a_url_that_cannot_be_served_is_one_line(place: str, says: str) -> None:
    with pytest.raises(SettingError) as raised:
        Store.from_settings(StateSettings(releases=place))
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda store: store.open("small-0123456789ab"), "release small-0123456789ab: manifest.json cannot be read"),
        (lambda store: store.ids(), r"s3://.* cannot be read"),
        (lambda store: pointer.read(store, None), r"ACTIVE\.json cannot be read"),
        (lambda store: pointer.promote(store, None, "small-0123456789ab"), r"ACTIVE\.json cannot be written"),
    ],
)
def test_a_services_own_error_is_one_line(ask: Callable[[Store], object], says: str, s3: Proxy, s3_url: str) -> None:
    s3.expire()
    with pytest.raises(TandemError) as raised:
        ask(Store(s3_url))
    assert re.search(rf"{says}: ExpiredToken: The provided token has expired\.$", str(raised.value))
    assert KEY not in str(raised.value)


def test_an_object_that_cannot_be_read_is_named(s3: Proxy, s3_url: str) -> None:
    sealed = small_release.seal(Store(s3_url))
    s3.expire()
    # An answer to HEAD has no text.
    for ask, says in ((sealed.read, "ExpiredToken"), (sealed.file_size, "Server returned non-2xx status code: 403")):
        with pytest.raises(ReleaseError, match=rf"int8/model\.bin cannot be read: {says}"):
            ask("int8/model.bin")


def command(root: str, state: Path, *arguments: str) -> str:
    """Run a command of `python -m shared_model` in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "shared_model", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "TANDEM_RELEASES": root, "TANDEM_STATE": str(state)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stdout


@pytest.mark.heavy
def test_releases_behind_a_url_are_shared_by_processes(s3_url: str, tmp_path: Path) -> None:
    release = small_release.seal(Store(s3_url))
    small_release.judge(release)
    small_release.sign_verdict(release, tmp_path)
    assert listed(command(s3_url, tmp_path, "list")) == [f"{release.id} passed"]
    assert command(s3_url, tmp_path, "promote", release.id).startswith(f"release {release.id} is active (version 1)")
    assert pointer.read(Store(s3_url), None).active == release.id
    assert f"place         {s3_url}/small/{release.id}" in command(s3_url, tmp_path, "show")
    assert command(s3_url, tmp_path, "verify") == f"release {release.id}: 7 files, every one as built\n"


def links(root: Path, target: Path) -> None:
    """Replace a file or folder by a link to what it was."""
    moved = target.rename(root.parent / "elsewhere")
    target.symlink_to(moved)


@pytest.mark.parametrize("what", ["folder/inner/file.json", "folder/inner", "folder"])
def test_links_are_neither_read_nor_written_through(tmp_path: Path, what: str) -> None:
    root, path = tmp_path / "root", "folder/inner/file.json"
    files = LocalFiles(root)
    files.write(path, b"ours")
    links(root, root / what)
    elsewhere = sorted(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    for ask in (lambda: files.read(path), lambda: files.size(path), lambda: files.write(path, b"theirs")):
        with pytest.raises(ReleaseError, match=r"file\.json is, or lies behind, a link"):
            ask()
    assert sorted(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()) == elsewhere


def test_a_root_that_is_a_link_is_a_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    sealed = small_release.seal(Store(tmp_path / "linked"))
    Store(tmp_path / "real").open(sealed.id).verify()


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ReleaseError, match=r"pipe\.json is no regular file"):
        LocalFiles(tmp_path).read("pipe.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.write("note.json", b"old")
    with largest_file(1024), pytest.raises(OSError, match="File too large"):
        files.write("note.json", bytes(2048))
    assert files.read("note.json") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"]


def test_a_copy_that_was_not_finished_is_not_taken_for_a_release(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sealed = small_release.seal(store)
    (tmp_path / "small" / sealed.id / manifest.FILE).unlink()
    with pytest.raises(ReleaseError, match=rf"{sealed.id} holds no manifest\.json: a copy that was not finished"):
        small_release.seal(store)
