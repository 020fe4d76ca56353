"""The report as a page: what came of the night first, then what the gate said and plots that show why, then details."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from batch_job.reporting import charts, markup, report, words
from batch_job.reporting.cost import cost_per_million
from batch_job.reporting.markup import Child, tag
from batch_job.run_record import LENGTH_STEP, Findings, QuarantinedLine, RunRecord, Scoring, Verdict

#: Labels that are drawn, the most frequent of both days; the others are added up.
_LABELS = 20
#: Rates that a plot over time needs: fewer are those of a few units, one beside the other.
_RATES = 6

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --dim: #5d6574; --line: #d9dde5; --now: #2f6fde; --before: #b3bac7;
  --good: #1a7f4b; --bad: #c0362c; --warn: #a86700; --paper: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #9aa3b2; --line: #333b4a; --now: #6ea0ff;
  --before: #5a6474; --good: #4cc38a; --bad: #ff7b72; --warn: #e0a33a; --paper: #14181f } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } a { color: var(--now) }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--dim); font-weight: 500; white-space: nowrap } .figure { white-space: nowrap }
.first td { font-size: 1.05rem }
.raw { font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; min-width: 16rem }
.said { min-width: 16rem }
dt { font-weight: 500; margin-top: .5rem } dd { margin: 0; color: var(--dim) }
svg { width: 100%; min-width: 36rem; height: auto; display: block; font: 11px system-ui, sans-serif }
svg text { fill: var(--ink) } .grid { stroke: var(--line) }
.now, .area { fill: var(--now) } .before { fill: var(--before) }
.problem { border-left: 4px solid var(--bad); padding-left: .8rem } .dim { color: var(--dim) }
.ok { color: var(--good) } .fail { color: var(--bad) } .warn { color: var(--warn) }
"""


@dataclass(frozen=True)
class Around:
    """What the page says beside the run. `previous` and `release`: links to the report of the day before and to the
    release's, empty where there is none."""

    price_per_hour: float
    currency: str = "USD"
    previous: str = ""
    release: str = ""


def html(run: RunRecord, around: Around) -> str:
    """The whole page, for one run in any state."""
    title = f"Nightly run of {run.ds}"
    body: list[Child] = [tag("h1", f"{title}: {report.status(run)}")]
    if run.problem:
        body.append(tag("p", run.problem, class_="problem"))
    body.append(_pairs(_first(run), "first"))
    body += _links(run, around)
    if run.findings:
        body += [*_gates(run.findings.verdicts), *_labels(run.findings), *_quarantine(run.findings)]
    if run.scoring:
        body += _speed(run.scoring, around)
    if run.findings:
        body += _plots(run.findings)
    if run.scoring:
        body += _stages(run.scoring)
    body += [tag("h2", "Details"), _pairs(_details(run))]
    return markup.document(title, _STYLE, *body)


def _first(run: RunRecord) -> Iterator[tuple[str, Child]]:
    """What a reader wants to know first."""
    quarantined = run.scoring.quarantined if run.scoring else run.findings.quarantined if run.findings else {}
    yield "scored", words.scored(run)
    yield "quarantined", words.quarantined(quarantined, run.input.lines)
    yield "label shift", words.label_shift(run.findings)
    yield "online", report.publication(run)


def _links(run: RunRecord, around: Around) -> Iterator[Element]:
    links: list[Child] = []
    if around.previous and run.findings:
        links.append(tag("a", f"report of {run.findings.before}", href=around.previous))
    if around.release:
        links += [" · "] if links else []
        links.append(tag("a", f"report of release {run.release}", href=around.release))
    if links:
        yield tag("p", *links)


def _gates(verdicts: Sequence[Verdict]) -> Iterator[Element]:
    yield tag("h2", "Gates")
    yield _table(("gate", "verdict", "value", "allowed", "finding"), map(_gate, verdicts))
    used = {str(verdict.outcome) for verdict in verdicts} | {verdict.gate for verdict in verdicts}
    known = [(term, meaning) for term, meaning in words.TERMS.items() if term in used]
    yield tag("dl", *(tag(name, text) for term in known for name, text in zip(("dt", "dd"), term, strict=True)))


def _gate(verdict: Verdict) -> tuple[Child, ...]:
    said = f"{verdict.outcome}{', accepted' if verdict.accepted else ''}"
    return (
        tag("span", verdict.gate, class_="figure"),
        tag("span", said, class_=f"figure {verdict.outcome}"),
        tag("span", words.value(verdict), class_="figure"),
        tag("span", verdict.bound or "–", class_="figure"),
        tag("div", verdict.line, class_="said"),
    )


def _labels(findings: Findings) -> Iterator[Element]:
    yield tag("h2", "Labels")
    if not findings.labels:
        yield tag("p", "The rows have no labels.", class_="dim")
        return
    against = f"grey: {findings.before}" if findings.before else "no other day to compare with"
    yield tag("p", f"Share of the rows, the most frequent labels; blue: this day, {against}.", class_="dim")
    now, before = _shares(findings.labels), _shares(findings.labels_before)
    shares = [(name, now.get(name, 0.0), before.get(name, 0.0)) for name in sorted(now.keys() | before.keys())]
    shares.sort(key=lambda it: -max(it[1:]))
    shown, rest = shares[:_LABELS], shares[_LABELS:]
    rows = [(name, share, was, f"{share:.1%} / {was:.1%}" if before else f"{share:.1%}") for name, share, was in shown]
    yield _wide(charts.pairs("Labels against the day before", rows))
    if rest:
        share, was = sum(it[1] for it in rest), sum(it[2] for it in rest)
        yield tag("p", f"{len(rest)} other labels: {share:.1%} of the rows, {was:.1%} before.", class_="dim")


def _shares(rows: Mapping[str, int]) -> dict[str, float]:
    total = sum(rows.values())
    return {label: count / total for label, count in rows.items()} if total else {}


def _quarantine(findings: Findings) -> Iterator[Element]:
    yield tag("h2", "Quarantine")
    if not findings.quarantined:
        yield tag("p", "No line was quarantined.", class_="dim")
        return
    reasons = sorted(findings.quarantined.items(), key=lambda it: -it[1])
    yield _wide(charts.bars("Lines by reason", [(reason, lines, f"{lines:,}") for reason, lines in reasons]))
    if findings.quarantined_examples:
        yield _table(("reason", "file", "example"), map(_example, findings.quarantined_examples))


def _example(line: QuarantinedLine) -> tuple[Child, ...]:
    raw = tag("div", line.raw, class_="raw") if line.raw else tag("span", "(an empty line)", class_="dim")
    return tag("span", line.reason, class_="figure"), tag("span", line.file, class_="figure"), raw


def _speed(scoring: Scoring, around: Around) -> Iterator[Element]:
    yield tag("h2", "Speed and cost")
    if not scoring.computed:
        yield _pairs([("speed", report.speed(scoring)), ("taken over", report.spared(scoring))])
        return
    yield _pairs(_speeds(scoring, around))


def _speeds(scoring: Scoring, around: Around) -> Iterator[tuple[str, Child]]:
    rate = scoring.rows_per_second
    yield "scoring alone", f"{scoring.scored_per_second:,.0f} rows/s in {scoring.precision}"
    yield "from reading to commit", f"{rate:,.0f} rows/s"
    yield "time", f"{words.moment(scoring.began_at)} to {words.moment(scoring.finished_at)}"
    if rate:
        cost, currency = cost_per_million(around.price_per_hour, rate), around.currency
        yield "a million messages", f"{cost:,.2f} {currency}, at {around.price_per_hour:,.2f} {currency} per hour"
    yield "taken over", report.spared(scoring)


def _plots(findings: Findings) -> Iterator[Element]:
    if len(set(findings.pace)) >= _RATES:
        yield tag("h2", "Rows per second, over time")
        yield _wide(charts.over_time("Rows per second", findings.pace, findings.pace_seconds))
    if findings.lengths:
        yield tag("h2", "Lengths of texts")
        yield _wide(charts.columns("Rows by tokens", findings.lengths, LENGTH_STEP, "tokens", "rows"))


def _stages(scoring: Scoring) -> Iterator[Element]:
    if scoring.seconds:
        yield tag("h2", "Time per stage")
        yield tag("p", "Stages of workers overlap, and are those of all workers together.", class_="dim")
        stages = [(name, took, f"{took:,.1f} s") for name, took in scoring.seconds.items()]
        yield _wide(charts.bars("Seconds by stage", stages))


def _details(run: RunRecord) -> Iterator[tuple[str, Child]]:
    yield "run", run.run_id
    yield "planned", words.moment(run.planned_at)
    yield "release", run.release
    yield "input", f"{report.source(run.input)}; {run.input.identity}"
    yield "deferred requests answered", f"{run.drained:,}"
    if run.scoring:
        yield from _scoring_details(run.scoring)


def _scoring_details(scoring: Scoring) -> Iterator[tuple[str, Child]]:
    yield "table version", f"{scoring.table_version}, attempt {scoring.token}"
    yield "plan", scoring.plan_id
    if scoring.content:
        yield "content hash", scoring.content
    if not scoring.computed:
        return
    yield "tokens", f"{report.tokens(scoring)}; {scoring.padding_share:.1%} of all run is padding"
    yield "rows run", f"{scoring.distinct:,}: texts that are the same are run once"
    if busy := report.busy(scoring):
        yield "devices", busy
    if scoring.workers:
        workers = [(str(it.pid), f"{it.rows:,}") for it in scoring.workers]
        yield "workers", _table(("process", "rows"), workers)


def _table(header: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    head = [tag("tr", *(tag("th", name) for name in header))]
    return _wide(tag("table", *head, *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)))


def _pairs(rows: Iterable[tuple[str, Child]], class_: str = "") -> Element:
    """Names in the first column, what they are in the second."""
    lines = [tag("tr", tag("th", name), tag("td", value)) for name, value in rows]
    return _wide(tag("table", *lines, class_=class_))


def _wide(part: Element) -> Element:
    """What scrolls where a screen is narrower, so that no word is broken."""
    return tag("div", part, class_="wide")
