"""The question that a person is asked shows names of other people as they are, and nothing else."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from batch_job.reporting import approval_request
from batch_job.run_record import Findings, Input, Outcome, RunRecord, Runtime, Verdict


def run(folder: str = "/days") -> RunRecord:
    return RunRecord("2026-01-15", "run", "", "small-1", Runtime("", ""), Input(folder, (), ""))


@given(st.text(alphabet="<>|[]()*_`#&!\\ab"), st.text(alphabet="<>|[]`a"))
def test_no_name_means_anything_to_markdown_or_html(label: str, folder: str) -> None:
    findings = Findings(2, {label: 2}, (), before="2026-01-14", labels_before={"other": 1})
    body = approval_request.body(run(folder), findings, Path("/runs/a_b.json"))
    bare = re.sub(r"\\.", "", body)
    own = "| label | 2026-01-14 | this day |\n|---|---|---|\n"
    assert own in bare
    assert not re.search(r"[<>\[\]`*_#&]", bare.replace(own, ""))
    assert bare.replace(own, "").count("|") == 4 * 2 if label != "other" else True


def test_only_what_refuses_is_asked_about_and_labels_need_a_day_before() -> None:
    verdicts = (
        Verdict("labels", Outcome.FAIL, 1.0, "at most 0", "they moved"),
        Verdict("agreement", Outcome.FAIL, 1.0, "at most 0", "they differ", accepted=True),
        Verdict("finite", Outcome.OK, 0.0, "none", "fine"),
    )
    findings = Findings(2, {"yes": 2}, (), {"empty": 3}, verdicts=verdicts)
    body = approval_request.body(run(), findings, Path("/runs/run.json"))
    assert body.startswith("- **labels**: they moved (at most 0)\n\n- input: ")
    assert "2 rows scored and 3 lines quarantined, by release small-1" in body
    assert "- report: /runs/run/report.html" in body
    assert "agreement" not in body
    assert "| label |" not in body
    assert approval_request.subject(run(), ["labels", "agreement"]).endswith("that labels and agreement refused?")
