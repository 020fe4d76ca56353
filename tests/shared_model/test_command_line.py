"""`python -m shared_model`: one line for every answer, one line and exit 2 for every wrong call."""

import re
import shutil
from pathlib import Path

import pytest

from shared_model.__main__ import main
from shared_model.releases import pointer
from shared_model.releases.store import Release

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    monkeypatch.delenv("TANDEM_RELEASES", raising=False)
    return tmp_path


@pytest.fixture
def copied(release: Release, place: Path) -> Release:
    shutil.copytree(release.folder, place / "releases" / release.folder.parent.name / release.id)
    pointer.set_active(place / "releases", None, release.id)
    return release


def test_an_active_release_is_not_built_again(copied: Release, capsys: Captured) -> None:
    assert main(["build", "--if-missing"]) == 0
    assert capsys.readouterr().out == f"release {copied.id} is active; nothing to build\n"


def test_list_show_verify_and_promote(copied: Release, capsys: Captured) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == f"{copied.id}  active\n"
    assert main(["show"]) == 0
    assert capsys.readouterr().out == copied.manifest.to_json().decode()
    assert main(["verify"]) == 0
    assert capsys.readouterr().out == f"release {copied.id}: 7 files, every one as built\n"
    assert main(["promote", copied.id]) == 0
    assert capsys.readouterr().out == f"release {copied.id} is active\n"


def test_messages_say_what_they_wrote_and_where(place: Path, capsys: Captured) -> None:
    assert main(["messages", "--count", "100"]) == 0
    assert capsys.readouterr().out == f"100 messages in {place / 'messages'}: ds=2026-01-14, ds=2026-01-15\n"
    assert (place / "messages" / "ds=2026-01-15" / "messages.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["verify"], "verify: no release is active: run `python -m shared_model build`"),
        (["verify", "../../etc"], "verify: '../../etc' is not a release id"),
        (["promote", "small-0123456789ab"], "promote: release small-0123456789ab is not in "),
        (["build", "--head", "nowhere"], "build: .*nowhere"),
        (["build", "--eval", "nowhere.csv"], "build: .*nowhere.csv"),
        (["train-head", "--data", "nowhere.csv", "--out", "x"], "train-head: .*nowhere.csv"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(arguments: list[str], line: str, capsys: Captured) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert re.match(f"shared_model {line}", printed)
    assert printed.count("\n") == 1


def test_a_damaged_release_is_named(copied: Release, place: Path, capsys: Captured) -> None:
    (place / "releases" / copied.folder.parent.name / copied.id / "config.json").write_text("{}")
    assert main(["verify"]) == 2
    assert capsys.readouterr().err.endswith("config.json does not match its sha256; copy the release again\n")
