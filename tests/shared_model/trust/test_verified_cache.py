"""A cache in a folder: what the cluster key did not write under this name is not read, and its size has a bound."""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_model.trust.verified_cache import VerifiedCache

KEY = b"k" * 32


def cache(folder: Path, key: bytes = KEY, **bound: int) -> VerifiedCache:
    return VerifiedCache(folder, lambda: key, **bound)


def test_what_was_written_is_read_by_the_next_process_under_its_name(tmp_path: Path) -> None:
    cache(tmp_path / "new").write("a", b"graph")
    assert cache(tmp_path / "new").read("a") == b"graph"
    assert cache(tmp_path / "new").read("b") is None
    assert (tmp_path / "new" / "a").stat().st_mode & 0o777 == 0o600


def test_another_key_or_another_name_reads_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache(tmp_path).write("a", b"graph")
    assert cache(tmp_path, b"x" * 32).read("a") is None
    (tmp_path / "a").rename(tmp_path / "b")
    assert cache(tmp_path).read("b") is None
    assert [f"{tmp_path / it} is damaged" in caplog.text for it in "ab"] == [True, True]


@given(data=st.binary(max_size=60), at=st.integers(0, 91), other=st.integers(1, 255), shorter=st.booleans())
def test_changed_bytes_are_not_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, other: int, shorter: bool
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    cache(folder).write("a", data)
    kept = bytearray((folder / "a").read_bytes())
    at %= len(kept)
    if shorter:
        del kept[at:]
    else:
        kept[at] ^= other
    (folder / "a").write_bytes(kept)
    assert cache(folder).read("a") is None


def test_without_a_key_nothing_is_kept_or_read(tmp_path: Path) -> None:
    # HMAC fills keys up with zeros, so this one is the empty one.
    cache(tmp_path, b"\0").write("a", b"graph")
    without = cache(tmp_path, b"")
    without.write("b", b"graph")
    assert without.read("a") is None
    assert [it.name for it in tmp_path.iterdir()] == ["a"]


def test_what_was_read_longest_ago_goes_first(tmp_path: Path) -> None:
    kept = cache(tmp_path, most_bytes=3 * (32 + 100))
    for age, name in enumerate("abc"):
        kept.write(name, bytes(100))
        os.utime(tmp_path / name, (1_000 + age, 1_000 + age))
    assert kept.read("a") is not None
    kept.write("d", bytes(100))
    assert {it.name for it in tmp_path.iterdir()} == {"a", "c", "d"}


def test_a_folder_that_cannot_be_written_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_bytes(b"")
    kept = cache(tmp_path / "file")
    for name in "ab":
        kept.write(name, b"graph")
        assert kept.read(name) is None
    assert [it.getMessage().partition(",")[0] for it in caplog.records] == [f"{tmp_path / 'file'} cannot be written"]
