"""The report: a page that is whole in itself and escapes everything, and a document that holds the record."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_job import reporting, run_record
from batch_job.checks import gate
from batch_job.reporting import charts, page, plain_text
from batch_job.reporting.cost import cost_per_million
from batch_job.run_record import Findings, Outcome, Publication, QuarantinedLine, RunRecord, State, Verdict, Worker
from batch_job.steps import context
from tests.batch_job.test_run_record import FINDINGS, PLANNED, SCORING

VOID = {"meta"}
#: What the document has beside the record.
DERIVED = ("price_per_hour", "price_currency", "cost_per_million", "tokens_per_second", "busy_share", "length_step")
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
        self.said = " ".join(" ".join(self.text).split())

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


def drawn(svg: str) -> tuple[list[dict[str, float]], float, float]:
    """The bars of a plot, and its width and height."""
    tree = ElementTree.fromstring(page.printable(svg))  # noqa: S314 (ours)
    kinds = [(rect.attrib["class"].split()[0], rect) for rect in tree.iter("rect")]
    bars = [
        {name: float(it.get(name, 0)) for name in ("x", "y", "width", "height")} for kind, it in kinds if kind == "rect"
    ]
    plot = [it for kind, it in kinds if kind == "background"][1]
    return bars, float(plot.attrib["width"]), float(plot.attrib["height"])


def test_the_page_says_everything_of_the_night() -> None:
    html = page.html(PUBLISHED, 0.36, "EUR")
    text = Page(html).said
    for said in (
        "Nightly run of 2026-01-14: published, live as epoch 2026-01-14.3",
        "name-0123456789ab",
        "0123",
        "7, attempt 3",
        "2 of 3 lines, committed",
        "1 of 3 lines (33.33%): empty 1",
        "fail, accepted: PSI 0.812",
        "scoring alone 1 rows/s in bf16",
        "from reading to commit 12 rows/s",
        "unknown to 2026-11-21 08:01 UTC",
        "planned 2026-11-21 08:00 UTC",
        "40 tokens, 25 tokens/s while scoring; 1.0% of all run is padding",
        "busy 75.0% of the time of scoring, in 2 slots",
        "8.00 EUR, at 0.36 EUR per hour",
        "120 keys as epoch 2026-01-14.3",
        "deferred requests answered",
        "grey: 2026-01-13",
        "2 other labels: 1.6% of the rows, 1.0% before.",
        "b.jsonl (an empty line)",
        "yes: 26.1%",
        "yes, the day before: 30.0%",
        "empty: 1",
        "0 to 0.8 s: 100 rows/s",
        "0 to 4 tokens: 240 rows",
        "workers ran: 2.4 s",
    ):
        assert said in text, said
    assert set(plots(html)) == {
        "Rows by tokens",
        "Labels against the day before",
        "Rows per second",
        "Lines by reason",
        "Seconds by stage",
    }


def test_what_matters_comes_first_and_facts_for_insiders_last() -> None:
    text = Page(page.html(PUBLISHED, 0.1)).said
    order = ("scored", "quarantined", "label shift", "online", "Gates", "Labels", "Speed and cost", "Details")
    places = [text.index(f" {part} ") for part in order]
    assert places == sorted(places)
    for fact in (SCORING.plan_id, "attempt 3", "in 2 slots"):
        assert text.index(fact, text.index("Gates")) > places[-1], fact


def body_of(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html.partition("</head>")[2].rpartition("</html>")[0])  # noqa: S314 (ours)


def test_every_column_has_a_heading_and_as_many_cells() -> None:
    tables = list(body_of(page.html(PUBLISHED, 0.1)).iter("table"))
    assert len(tables) == 6
    for rows in map(list, tables):
        assert {len(row) for row in rows} == {len(rows[0])}
        assert all(cell.text for row in rows for cell in row if cell.tag == "th")


def test_no_rule_breaks_words() -> None:
    """`verdic/t` and `0.999/4` were; what is too wide scrolls."""
    html = page.html(PUBLISHED, 0.1)
    assert not re.search(r"overflow-wrap|word-break|word-wrap|hyphens", html)
    body = body_of(html)
    scroll = [it for it in body.iter("div") if it.get("class") == "wide"]
    inside = {id(part) for it in scroll for part in it.iter()}
    assert all(id(part) in inside for name in ("table", "svg") for part in body.iter(name))


def verdict_of(gate_name: str, value: float | None) -> Verdict:
    return Verdict(gate_name, Outcome.OK, value, "bound", "line")


@pytest.mark.parametrize(
    ("gate_name", "value", "said"),
    [
        (gate.ALL, -0.701, "0.7 points more"),
        (gate.ALL, 3.1, "3.1 points fewer"),
        (gate.CLEAR, 0.99943, "99.94%"),
        (gate.QUARANTINE, 0.0123, "1.23%"),
        (gate.LABELS, 0.8123, "PSI 0.8123"),
        (gate.COUNTS, 0, "0"),
        (gate.CLEAR, None, "–"),
    ],
)
def test_a_gates_value_says_its_unit_and_its_sign_in_words(gate_name: str, value: float | None, said: str) -> None:
    assert page.value(verdict_of(gate_name, value)) == said


def test_every_gate_and_every_verdict_is_explained() -> None:
    gates = (gate.COUNTS, gate.FINITE, gate.LABELS, gate.CLEAR, gate.ALL, gate.QUARANTINE)
    assert set(page.TERMS) == {*gates, *map(str, Outcome)} - {str(Outcome.OK)}
    text = Page(page.html(PUBLISHED, 0.1)).said
    assert page.TERMS["labels"] in text
    assert page.TERMS["unproven"] in text
    assert page.TERMS["finite"] not in text


def test_moments_are_readable_and_in_utc() -> None:
    assert page.moment("2026-11-23T04:36:34.354+00:00") == "2026-11-23 04:36 UTC"
    assert page.moment("2026-11-23T06:36:34+02:00") == "2026-11-23 04:36 UTC"
    assert (page.moment(""), page.moment("yesterday")) == ("unknown", "yesterday")


def test_a_refused_day_shows_examples_of_what_is_quarantined() -> None:
    lines = (QuarantinedLine("bad_json", "a.jsonl", "<b>no JSON</b>"), QuarantinedLine("empty", "b.jsonl", ""))
    found = Findings(0, {}, (), {"bad_json": 2, "empty": 1}, quarantined_examples=lines)
    html = page.html(replace(PLANNED, state=State.FAILED, findings=found), 0.1)
    text = Page(html).said
    assert "nothing is committed; 3 lines were planned" in text
    assert "3 of 3 lines (100.00%): bad_json 2, empty 1" in text
    assert "bad_json a.jsonl <b>no JSON</b>" in text
    assert "not measured" in text


def test_the_page_links_to_the_day_before_and_to_the_release(tmp_path: Path) -> None:
    runs, releases = tmp_path / "runs", tmp_path / "releases"
    (releases / "name" / PUBLISHED.release).mkdir(parents=True)
    own = runs / PUBLISHED.ds / "scheduled__2026.json"
    before = replace(PUBLISHED, ds="2026-01-13", findings=None)
    assert Page(reporting.write(own, PUBLISHED, 0.1, "USD", str(releases))[0].read_text()).links == []
    for name in ("manual__1+00:00.json", "manual__2+00:00.json"):
        run_record.write(runs / before.ds / name, before)
    reporting.write(runs / before.ds / "manual__1+00:00.json", before, 0.1)
    report_md = releases / "name" / PUBLISHED.release / "report.md"
    report_md.write_text("# report")
    html, _ = reporting.write(own, PUBLISHED, 0.1, "USD", str(releases))
    links = [link for link in Page(html.read_text()).links if link]
    assert links == ["../../2026-01-13/manual__1%2B00%3A00/report.html", report_md.as_uri()]
    assert (html.parent / unquote(links[0])).resolve().exists()
    text = Page(html.read_text()).said
    assert "report of 2026-01-13 · report of release name-0123456789ab" in text


def test_few_rates_are_no_plot() -> None:
    """The rates of single shards look as if the speed had changed."""
    few = replace(PUBLISHED, findings=replace(FINDINGS, pace=(100.0, 100.0, 150.0, 0.0)))
    assert "Rows per second" not in plots(page.html(few, 0.1))


def test_the_page_needs_no_network_and_runs_nothing() -> None:
    html = page.html(PUBLISHED, 0.1)
    parsed = Page(html)
    assert parsed.links == []
    assert not set(parsed.tags) & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not re.search(r"https?:|url\(|@import", html)


def test_a_run_has_one_page_whenever_it_is_written() -> None:
    assert page.html(PUBLISHED, 0.1) == page.html(PUBLISHED, 0.1)


@pytest.mark.heavy
def test_only_writing_a_report_loads_templates_and_plots() -> None:
    loaded = "import sys, batch_job.steps.score; print([it for it in ('jinja2', 'pygal') if it in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "[]\n"


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
        quarantined_examples=(QuarantinedLine(text, text, f"line {text}"),),
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
    run_record.write(path, PUBLISHED)
    html, document = reporting.write(path, PUBLISHED, 0.36)
    assert html == tmp_path / "2026-01-14" / "manual__1.5" / "report.html"
    found = json.loads(document.read_text())
    assert {name: found.pop(name) for name in DERIVED} == {
        "price_per_hour": 0.36,
        "price_currency": "USD",
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
    assert [document[name] for name in DERIVED[2:5]] == [None] * 3


def test_the_summary_says_how_fast_and_how_busy() -> None:
    said = plain_text.summary(PUBLISHED)
    assert "12 rows/s in bf16, 40 tokens, 25 tokens/s while scoring, 1.0% padding, 1 rows run for 2\n" in said
    assert "\n  devices     busy 75.0% of the time of scoring, in 2 slots\n" in said
    assert "devices" not in plain_text.summary(replace(PUBLISHED, scoring=replace(SCORING, slots=0)))


def resumed(own: int) -> RunRecord:
    """A run of 2,000 rows, of which its own attempt scored some, the last two of four units."""
    workers = (Worker(17, own),) if own else ()
    scoring = replace(SCORING, rows=2_000, distinct=own, workers=workers, units=4, units_resumed=2 if own else 4)
    scoring = scoring if own else replace(scoring, rows_per_second=0, tokens=0, began_at="")
    return replace(PUBLISHED, scoring=scoring, findings=None)


def test_a_run_that_took_everything_over_has_no_speed() -> None:
    said, text = plain_text.summary(resumed(0)), Page(page.html(resumed(0), 0.1)).said
    for line in ("2,000 of 2,000 rows from earlier attempts, 4 of 4 units", "all 2,000 rows were taken over"):
        assert line in said
        assert line in text
    for figure in ("rows/s", "tokens/s", "0 tokens", "from  to"):
        assert figure not in said
        assert figure not in text


def test_a_run_that_took_half_over_has_the_speed_of_the_other_half() -> None:
    said = plain_text.summary(resumed(500))
    assert "\n  taken over  1,500 of 2,000 rows from earlier attempts, 2 of 4 units\n" in said
    assert "12 rows/s in bf16, 40 tokens, 25 tokens/s while scoring, 1.0% padding, 500 rows run for 500\n" in said


@pytest.mark.parametrize(
    ("state", "publication", "status", "online"),
    [
        (State.REFUSED, None, "refused", "not published"),
        (State.COMMITTED, None, "committed, not published", "not published"),
        (State.UNCHANGED, None, "unchanged, not published", "not published"),
        (
            State.COMMITTED,
            Publication("e.1", 0, False, False, "a newer day"),
            "committed, not live",
            "not live: a newer",
        ),
        (State.PUBLISHED, Publication("e.1", 2, False, True), "published, live as epoch e.1", "live already as epoch"),
    ],
)
def test_page_and_summary_have_the_same_words_for_how_a_run_stands(
    state: State, publication: Publication | None, status: str, online: str
) -> None:
    run = replace(PUBLISHED, state=state, publication=publication)
    said, text = plain_text.summary(run), Page(page.html(run, 0.1)).said
    assert f"of ds=2026-01-14: {status}\n" in said
    assert f"\n  online      {online}" in said
    assert f"Nightly run of 2026-01-14: {status}" in text
    assert online in text


def test_a_million_messages_at_a_thousand_a_second_take_as_many_seconds() -> None:
    assert cost_per_million(3.6, 1_000) == pytest.approx(1.0)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=130), st.floats(0.001, 1e4))
def test_columns_stand_on_the_floor_within_the_plot(values: list[float], step: float) -> None:
    bars, width, height = drawn(charts.columns("plot", values, step, "tokens", "rows"))
    assert len(bars) == len(values)
    floor = bars[0]["y"] + bars[0]["height"]
    for bar in bars:
        assert 0 <= bar["x"] <= bar["x"] + bar["width"] <= width
        assert 0 <= bar["y"] <= height
        assert bar["y"] + bar["height"] == pytest.approx(floor)


def test_the_highest_column_is_the_largest_value() -> None:
    svg = charts.columns("plot", [1, 4, 2], 1, "x", "rows")
    first, second, third = (bar["height"] for bar in drawn(svg)[0])
    assert (second, third) == (pytest.approx(4 * first), pytest.approx(2 * first))
    assert "<desc>0 to 1 x: 1 rows; 1 to 2 x: 4 rows; 2 to 3 x: 2 rows</desc>" in svg


@example({"name": (0.0, 5e-324)})
@given(st.dictionaries(st.text(max_size=60), st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_bars_in_pairs_stay_within_the_plot(shares: dict[str, tuple[float, float]]) -> None:
    bars, width, height = drawn(charts.bars("plot", [(it, *shares[it]) for it in shares], "{:.1%}"))
    assert len(bars) == 2 * len(shares)
    for bar in bars:
        assert 0 <= bar["x"] <= bar["x"] + bar["width"] <= width
        assert 0 <= bar["y"] <= bar["y"] + bar["height"] <= height


def test_bars_are_as_long_as_their_values_and_the_first_is_on_top() -> None:
    svg = charts.bars("plot", [("a", 0.3, 0.1), ("b" * 50, 0.2, 0.4)], "{:.0%}")
    first, *others = (bar["width"] for bar in sorted(drawn(svg)[0], key=lambda bar: bar["y"]))
    assert [width / first for width in others] == pytest.approx([1 / 3, 2 / 3, 4 / 3])
    texts = ["a: 30%", f"{'b' * 50}: 20%", "a, the day before: 10%", f"{'b' * 50}, the day before: 40%"]
    assert f"<desc>{'; '.join(texts)}</desc>" in svg
    assert {it.text for it in ElementTree.fromstring(svg).iterfind(".//g/title")} == set(texts)  # noqa: S314 (ours)


@given(st.floats(1e-3, 1e9), st.floats(1e-3, 1e4))
def test_axes_say_few_round_numbers_from_nothing(value: float, step: float) -> None:
    svg = ElementTree.fromstring(charts.columns("plot", [value], step, "x", "rows"))  # noqa: S314 (ours)
    for axis in ("axis x", "axis y always_show"):
        ticks = [float(str(it.text).replace(",", "")) for it in svg.iterfind(f".//g[@class='{axis}']//text")]
        assert ticks == pytest.approx([ticks[1] * number for number in range(len(ticks))], rel=1e-3)
        assert 4 <= len(ticks) <= 11
        assert f"{ticks[1]:.6e}".partition("e")[0] in ("1.000000", "2.000000", "4.000000")


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
    context.write_report(Mock(path=path))
    assert f"no report was written: {path} cannot be read as a run record" in capfd.readouterr().err
