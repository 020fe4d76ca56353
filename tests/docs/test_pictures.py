"""The pictures of READMEs, which are screenshots of Airflow's UI and of the SLA board."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
#: Bytes of one picture.
MOST = 150_000


def test_pictures_are_there_are_described_and_are_small() -> None:
    pictures = re.findall(r'<img src="([^"]+)" width="49%" alt="([^"]+)">', (REPOSITORY / "README.md").read_text())
    assert len(pictures) == 4
    assert len({alt for _, alt in pictures}) == 4
    assert [path for path, _ in pictures if not 0 < (REPOSITORY / path).stat().st_size <= MOST] == []


def test_the_boards_pictures_are_there_and_small() -> None:
    folder = REPOSITORY / "realtime_service"
    pictures = re.findall(r'<img src="([^"]+)" width="[0-9]+%" alt="[^"]+">', (folder / "README.md").read_text())
    assert len(pictures) == 2
    assert [path for path in pictures if not 0 < (folder / path).stat().st_size <= MOST] == []
