"""The report: a page that is whole in itself and escapes everything, and a document that holds the record."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_job import job, record, reporting
from batch_job.checks import gate
from batch_job.record import Findings, Outcome, Publication, RunRecord, State, Verdict
from batch_job.reporting import charts, markup, page, report
from batch_job.reporting.cost import cost_per_million
from tests.batch_job.test_record import FINDINGS, PLANNED, SCORING

VOID = {"meta"}
#: What the document has beside the record.
DERIVED = ("price_per_hour", "cost_per_million", "tokens_per_second", "busy_share", "length_step")
PUBLISHED = replace(
    PLANNED,
    state=State.PUBLISHED,
    token=3,
    scoring=SCORING,
    findings=FINDINGS,
    drained=4,
    publication=Publication("2026-01-14.3", 120, moved=True, live=True, bytes=9_000),
)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x00\ud800'


class Page(HTMLParser):
    """Tags, links and text of a page whose tags are all closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "style") or name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def plots(html: str) -> dict[str, ElementTree.Element]:
    """Title → plot; each is well-formed by itself."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]  # noqa: S314 (ours)
    return {str(svg.findtext("title")): svg for svg in found}


def sides(svg: ElementTree.Element) -> tuple[float, float]:
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    return width, height


def test_the_page_says_everything_of_the_night() -> None:
    html = page.html(PUBLISHED, 0.36)
    text = " ".join(Page(html).text)
    for said in (
        "Nightly run of 2026-01-14: published",
        "name-0123456789ab",
        "0123",
        "7, attempt 3",
        "2 scored, 1 quarantined",
        "12 rows/s in bf16",
        "40 tokens, 25 tokens/s while scoring; 1.0% of all run is padding",
        "busy 75.0% of the time of scoring, in 2 slots",
        "8.0000 at 0.36 per hour",
        "120 keys as epoch 2026-01-14.3",
        "deferred requests answered",
        "PSI 0.812",
        "fail, accepted",
        "grey: 2026-01-13",
        "2 other labels: 1.6% of the rows, 1.0% before.",
        "threads asked for",
    ):
        assert said in text, said
    assert set(plots(html)) == {
        "Rows by tokens",
        "Labels against the day before",
        "Rows per second",
        "Lines by reason",
        "Seconds by stage",
    }


def test_files_without_page_checksums_are_told_on_the_page_and_in_the_summary() -> None:
    checked, other = PUBLISHED.input.files
    run = replace(PUBLISHED, input=replace(PUBLISHED.input, files=(checked, replace(other, unchecked=True))))
    said = "1 of 2 input files have no page checksums: damage to them may go unnoticed"
    assert said in Page(page.html(run, 0.1)).text
    assert f"\n  unchecked   {said}\n" in report.summary(run)
    assert "unchecked" not in page.html(PUBLISHED, 0.1) + report.summary(PUBLISHED)


def test_the_page_needs_no_network_and_runs_nothing() -> None:
    html = page.html(PUBLISHED, 0.1)
    parsed = Page(html)
    assert parsed.links == []
    assert not set(parsed.tags) & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not re.search(r"https?:|url\(|@import", html)


@pytest.mark.parametrize("state", list(State))
def test_a_run_in_any_state_has_a_page(state: State) -> None:
    Page(page.html(replace(PLANNED, state=state, problem="it went wrong"), 0.1))
    Page(page.html(replace(PUBLISHED, state=state, findings=None), 0.1))
    Page(page.html(replace(PUBLISHED, scoring=None, findings=Findings(0, {}, ())), 0.0))


def hostile(text: str) -> RunRecord:
    """A run in which everything that anybody may choose is this text."""
    findings = Findings(
        rows=3,
        labels={text: 2, "b": 1},
        lengths=(3,),
        quarantined={text: 1},
        before=text,
        labels_before={text: 1},
        verdicts=(Verdict(text, Outcome.WARN, 0.5, text, text),),
    )
    source = replace(PLANNED.input, folder=text)
    scoring = replace(SCORING, seconds={text: 1.0}, plan_id=text)
    return replace(PUBLISHED, run_id=text, release=text, input=source, problem=text, scoring=scoring, findings=findings)


@given(st.text())
def test_whatever_text_goes_in_comes_out_as_text(text: str) -> None:
    plain = Page(page.html(hostile("plain"), 0.1))
    assert Page(page.html(hostile(f"not {text}"), 0.1)).tags == plain.tags


def test_hostile_text_is_shown_and_not_run(tmp_path: Path) -> None:
    html, _ = reporting.write(tmp_path / "run.json", hostile(HOSTILE), 0.1)
    parsed = Page(html.read_text())
    assert "script" not in parsed.tags
    assert "img" not in parsed.tags
    assert '"><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\ufffd\ufffd' in parsed.text


def test_the_document_is_the_record_and_what_follows_from_it(tmp_path: Path) -> None:
    path = tmp_path / "2026-01-14" / "manual__1.5.json"
    record.write(path, PUBLISHED)
    html, document = reporting.write(path, PUBLISHED, 0.36)
    assert html == tmp_path / "2026-01-14" / "manual__1.5" / "report.html"
    found = json.loads(document.read_text())
    assert {name: found.pop(name) for name in DERIVED} == {
        "price_per_hour": 0.36,
        "cost_per_million": pytest.approx(8.0),
        "tokens_per_second": 25.0,
        "busy_share": 0.75,
        "length_step": 4,
    }
    assert found == json.loads(path.read_text())
    # What looks for a day's newest record does not find a report.
    assert [it.name for it in path.parent.glob("*.json")] == [path.name]
    assert sorted(it.name for it in html.parent.iterdir()) == ["report.html", "report.json"]


def test_a_run_that_computed_nothing_costs_nothing_that_is_known() -> None:
    document = reporting.document(PLANNED, 0.1)
    assert [document[name] for name in DERIVED[1:4]] == [None] * 3


def test_the_summary_says_how_fast_and_how_busy() -> None:
    said = report.summary(PUBLISHED)
    assert "12 rows/s in bf16, 40 tokens, 25 tokens/s while scoring, 1.0% padding, 1 rows run for 2\n" in said
    assert "\n  devices     busy 75.0% of the time of scoring, in 2 slots\n" in said
    assert "devices" not in report.summary(replace(PUBLISHED, scoring=replace(SCORING, slots=0)))


def test_a_million_messages_at_a_thousand_a_second_take_as_many_seconds() -> None:
    assert cost_per_million(3.6, 1_000) == pytest.approx(1.0)


@given(st.lists(st.floats(0, 1e9), max_size=130))
def test_columns_stand_on_the_floor_within_the_plot(values: list[float]) -> None:
    svg = charts.columns("plot", values, 4, "tokens")
    width, height = sides(svg)
    bars = svg.findall("rect")
    assert len(bars) == len(values)
    for bar in bars:
        x, y, wide, high = (float(bar.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width + 0.5
        assert y >= 0
        assert y + high == pytest.approx(186, abs=0.02)
        assert y + high < height


def test_the_highest_column_is_the_largest_value() -> None:
    bars = charts.columns("plot", [1, 4, 2], 1, "x").findall("rect")
    first, second, third = (float(bar.attrib["height"]) for bar in bars)
    assert (second, third) == (pytest.approx(4 * first, rel=0.01), pytest.approx(2 * first, rel=0.01))
    assert bars[1].findtext("title") == "1 to 2 x: 4"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0.001, 1e4))
def test_a_rate_over_time_stays_within_the_plot(rates: list[float], seconds: float) -> None:
    svg = charts.over_time("plot", rates, seconds)
    polygon = svg.find("polygon")
    assert polygon is not None
    points = [tuple(map(float, point.split(","))) for point in polygon.attrib["points"].split()]
    width, height = sides(svg)
    assert len(points) == 2 * len(rates) + 2
    assert all(0 <= x <= width + 0.01 and 0 <= y <= height for x, y in points)


@example({"name": (0.0, 5e-324)})
@given(st.dictionaries(st.text(max_size=60), st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_bars_in_pairs_stay_within_the_plot_and_each_name_is_there(shares: dict[str, tuple[float, float]]) -> None:
    svg = charts.pairs("plot", [(name, now, before, "text") for name, (now, before) in shares.items()])
    width, height = sides(svg)
    assert len(svg.findall("rect")) == 2 * len(shares)
    for bar in svg.findall("rect"):
        x, y, wide, high = (float(bar.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x + wide <= width - 100
        assert y + high <= height
    titles = [text.findtext("title") for text in svg.findall("text") if text.find("title") is not None]
    assert len(titles) == len(shares)


@given(st.floats(1e-9, 1e12))
def test_an_axis_ends_above_what_it_shows_and_not_far_above(value: float) -> None:
    assert value <= charts.nice(value) * (1 + 1e-9) <= 2.01 * value


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, math.inf, math.nan])
def test_an_axis_of_nothing_has_an_end(value: float) -> None:
    assert charts.nice(value) == 1.0


def test_text_keeps_its_place_among_elements() -> None:
    made = markup.tag("p", "a < b", markup.tag("b", "c"), " & d", class_="x", text_anchor='"')
    assert ElementTree.tostring(made, encoding="unicode", method="html") == (
        '<p class="x" text-anchor="&quot;">a &lt; b<b>c</b> &amp; d</p>'
    )


def test_every_gate_has_a_line_on_the_page() -> None:
    names = (gate.COUNTS, gate.FINITE, *gate.ACCEPTABLE)
    verdicts = tuple(Verdict(name, Outcome.OK, None, "", f"said by {name}") for name in names)
    text = Page(page.html(replace(PUBLISHED, findings=replace(FINDINGS, verdicts=verdicts)), 0.1)).text
    assert {f"said by {name}" for name in names} <= set(text)


def test_a_record_that_cannot_be_read_hides_nothing_of_how_its_step_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    path.write_text("{")
    job._report(Mock(path=path))
    assert f"no report was written: {path} cannot be read as a run record" in capfd.readouterr().err
