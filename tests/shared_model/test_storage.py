"""Atomic writes and one-line exception texts."""

from pathlib import Path

import pytest

from shared_model.storage import atomic_write, one_line
from tests.shared_model.full_disk import largest_file


def test_a_file_is_replaced_and_its_folder_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    atomic_write(path, b"old")
    atomic_write(path, b"new")
    assert [(each.name, each.read_bytes()) for each in path.parent.iterdir()] == [("file.json", b"new")]


def test_a_hidden_file_is_written_under_a_name_with_one_dot_before_it(tmp_path: Path) -> None:
    """Readers of a folder pass over hidden files, and patterns for them name one dot."""
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", lambda path, target: seen.append(path.name))
        atomic_write(tmp_path / ".hidden", b"")
        atomic_write(tmp_path / "shown", b"")
    assert [name.partition(".")[2].split(".")[0] for name in seen] == ["hidden", "shown"]
    assert all(name.endswith(".part") for name in seen)


def test_a_failed_write_keeps_the_old_contents_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    atomic_write(path, b"old")
    with largest_file(100), pytest.raises(OSError, match="File too large"):
        atomic_write(path, bytes(1000))
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file.json", b"old")]


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("two\n  lines"), "two lines"), (ValueError(), "ValueError"), (ValueError("x" * 400), "x" * 300)],
)
def test_an_exception_becomes_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line
