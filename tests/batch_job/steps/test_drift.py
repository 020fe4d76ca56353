"""The `drift` step on committed days: what it prints, its page and document, and when it fails."""

import json
import random
from datetime import date, timedelta
from pathlib import Path

import pytest

from batch_job.__main__ import main
from shared_model.settings import StateSettings
from tests.batch_job.tables import days
from tests.batch_job.tables.days import RELEASE

FIRST, ROWS = date(2026, 1, 1), 300
LAST = str(FIRST + timedelta(days=19))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateSettings:
    """Twenty days; in the last five another label is frequent, and texts are longer."""
    found = StateSettings(state=tmp_path / "state")
    monkeypatch.setenv("TANDEM_STATE", str(found.state))
    found.state.mkdir(mode=0o700)
    chance = random.Random(7)
    for number in range(20):
        late = number >= 15
        labels = chance.choices(["yes", "no"], weights=(1, 9) if late else (5, 5), k=ROWS)
        tokens = [chance.randint(3, 60 if late else 20) for _ in range(ROWS)]
        scores = [chance.uniform(0.3, 1.0) for _ in range(ROWS)]
        days.commit(found.scores_table, str(FIRST + timedelta(days=number)), labels, scores, tokens, cut=3)
    return found


def test_it_prints_each_window_and_writes_a_page_and_a_document(
    state: StateSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drift", "--days", "5", "--days", "30"]) == 0
    said = capsys.readouterr().out.splitlines()
    page = state.state / "drift" / LAST / "drift.html"
    assert said[0] == (
        f"2026-01-16..{LAST} (5 days), release {RELEASE}: 1,500 rows against 4,500 of 2026-01-01..2026-01-15"
    )
    assert [line.split()[:2] for line in said[1:4]] == [
        ["labels", "report-only"],
        ["scores", "report-only"],
        ["lengths", "report-only"],
    ]
    assert said[4] == f"2025-12-22..{LAST}: not compared: no committed day is in its baseline"
    assert said[5:] == [f"page {page}"]
    html = page.read_text()
    assert html.count("<svg") == 3
    assert "yes, the baseline: 50." in html
    assert "the day before" not in html
    # Nothing is fetched from elsewhere.
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html
    assert "Cut texts: 1.00%, 1.00% in the baseline" in html
    found = json.loads(page.with_suffix(".json").read_text())
    assert (found["failures"], found["bound"], len(found["comparisons"])) == ([], 0.0, 1)
    shifts = {it["distribution"]: it for it in found["comparisons"][0]["shifts"]}
    assert shifts["labels"]["value"] > 0.5
    assert shifts["scores"]["value"] < 0.05
    assert shifts["labels"]["shares"][0][0] == "no"


def test_it_fails_only_beyond_a_configured_bound_and_its_line_names_all_that_moved(
    state: StateSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_DRIFT_BOUND", "0.2")
    assert main(["drift", "--days", "5"]) == 1
    said = capsys.readouterr()
    (line,) = [it for it in said.err.splitlines() if it.startswith("batch_job")]
    assert line.startswith(f"batch_job drift: beyond TANDEM_DRIFT_BOUND=0.2: labels of 2026-01-16..{LAST} (5 days), ")
    assert "; lengths of " in line
    assert "scores of" not in line
    assert "scores   ok" in said.out
    assert '<p class="problem">labels of ' in (state.state / "drift" / LAST / "drift.html").read_text()
    monkeypatch.setenv("TANDEM_DRIFT_BOUND", "9")
    assert main(["drift", "--days", "5"]) == 0


def test_a_window_and_a_baseline_can_be_named(
    state: StateSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_DRIFT_BASELINE", "2026-01-16..2026-01-17")
    assert main(["drift", "--from", "2026-01-02", "--to", "2026-01-04"]) == 0
    assert "2026-01-02..2026-01-04 (3 days), release small-0123456789ab: 900 rows against 600 of 2026-01-16.." in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "baseline", "problem"),
    [
        (["--from", "2026-01-09", "--to", "2026-01-04"], "", "--from 2026-01-09 is after --to 2026-01-04"),
        (["--to", "yesterday"], "", "--ds 'yesterday': expected a day as YYYY-MM-DD"),
        ([], "2026-01-09", "TANDEM_DRIFT_BASELINE='2026-01-09': expected two days, such as 2026-01-01..2026-01-30"),
        ([], "2026-01-09..2026-01-01", "TANDEM_DRIFT_BASELINE='2026-01-09..2026-01-01': expected two days"),
    ],
)
def test_what_is_wrong_is_one_line(
    state: StateSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    baseline: str,
    problem: str,
) -> None:
    monkeypatch.setenv("TANDEM_DRIFT_BASELINE", baseline)
    assert main(["drift", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_a_table_without_a_day_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    assert main(["drift"]) == 2
    assert f"{tmp_path}/scores holds no committed day of the default archive" in capsys.readouterr().err
