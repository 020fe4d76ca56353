"""The highest accepted versions outlive a process, and only grow, whichever process writes them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared_model.errors import SettingError, Untrusted
from shared_model.settings import StateSettings
from shared_model.trust import high_water, keyring
from shared_model.trust.high_water import HighWater


def test_a_mark_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "state" / high_water.FILE
    marks = HighWater(path)
    marks.check("policy", 0)
    marks.raise_to("policy", 7)
    after = HighWater(path)
    after.check("policy", 7)
    after.check("pointer", 1)
    with pytest.raises(Untrusted, match=rf"^has version 6, which comes after version 7; .* remove {path}$"):
        after.check("policy", 6)
    after.raise_to("policy", 3)
    assert HighWater(path).of("policy") == 7
    assert path.stat().st_mode & 0o777 == 0o600


def test_processes_that_write_at_once_keep_the_highest_of_each(tmp_path: Path) -> None:
    path = tmp_path / high_water.FILE
    marks = [HighWater(path) for _ in range(8)]

    def raise_both(index: int) -> None:
        for version in range(5):
            marks[index].raise_to(f"subject {index % 2}", 10 * version + index)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(raise_both, range(8)))
    assert [HighWater(path).of(f"subject {it}") for it in (0, 1)] == [46, 47]


@pytest.mark.parametrize("damaged", [b"", b"{", b"[1]", b'{"policy": "x"}', b"\xff"])
def test_a_damaged_file_is_named_before_anything_is_accepted(tmp_path: Path, damaged: bytes) -> None:
    keyring.make(tmp_path / "keys", cluster=False, operator=True)
    (tmp_path / high_water.FILE).write_bytes(damaged)
    with pytest.raises(SettingError, match=rf"^{tmp_path / high_water.FILE}: is damaged; remove it if "):
        keyring.load(StateSettings(state=tmp_path, redis_url="redis://127.0.0.1:1"))


def test_a_mark_that_cannot_be_kept_counts_until_the_process_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = HighWater(tmp_path / "state" / high_water.FILE)
    (tmp_path / "state").write_text("no folder")
    marks.raise_to("policy", 4)
    (line,) = caplog.messages
    assert line.startswith("version 4 of the policy is remembered until this process ends: ")
    with pytest.raises(Untrusted):
        marks.check("policy", 3)
