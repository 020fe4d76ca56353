"""The report as a page: what came of the night, what the gate said, and plots that show why."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from batch_job.record import LENGTH_STEP, Findings, RunRecord, Scoring, Verdict
from batch_job.reporting import charts, markup, report
from batch_job.reporting.cost import cost_per_million
from batch_job.reporting.markup import Child, tag

#: Labels that are drawn, the most frequent of both days; the others are added up.
_LABELS = 20

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --dim: #68707f; --line: #d9dde5; --now: #2f6fde; --before: #b3bac7;
  --good: #1a7f4b; --bad: #c0362c; --warn: #a86700; --paper: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #9aa3b2; --line: #333b4a; --now: #6ea0ff;
  --before: #5a6474; --good: #4cc38a; --bad: #ff7b72; --warn: #e0a33a; --paper: #14181f } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere }
th { color: var(--dim); font-weight: 500 }
svg { width: 100%; max-width: 680px; height: auto; display: block; font: 11px system-ui, sans-serif }
svg text { fill: var(--ink) } .grid { stroke: var(--line) }
.now, .area { fill: var(--now) } .before { fill: var(--before) }
.problem { border-left: 4px solid var(--bad); padding-left: .8rem } .dim { color: var(--dim) }
.ok { color: var(--good) } .fail { color: var(--bad) } .warn { color: var(--warn) }
"""


def html(run: RunRecord, price_per_hour: float) -> str:
    """The whole page, for one run in any state."""
    title = f"Nightly run of {run.ds}"
    body: list[Child] = [tag("h1", f"{title}: {run.state}")]
    if run.problem:
        body.append(tag("p", run.problem, class_="problem"))
    body.append(_pairs(_facts(run, price_per_hour)))
    if run.findings:
        body += [*_gates(run.findings.verdicts), *_plots(run.findings)]
    if run.scoring:
        body += _stages(run.scoring)
    return markup.document(title, _STYLE, *body)


def _facts(run: RunRecord, price_per_hour: float) -> Iterator[tuple[str, str]]:
    yield "run", run.run_id
    yield "planned", run.planned_at
    yield "release", run.release
    yield "input", f"{run.input.lines:,} lines in {len(run.input.files)} files of {run.input.folder}"
    if unchecked := report.unchecked(run.input):
        yield "unchecked", unchecked
    if run.scoring:
        yield from _scored(run.scoring, price_per_hour)
    yield "deferred requests answered", f"{run.drained:,}"
    yield "published", report.publication(run)


def _scored(scoring: Scoring, price_per_hour: float) -> Iterator[tuple[str, str]]:
    yield "plan", scoring.plan_id
    yield "table version", f"{scoring.table_version}, attempt {scoring.token}"
    yield "rows", f"{scoring.rows:,} scored, {sum(scoring.quarantined.values()):,} quarantined"
    if scoring.content:
        yield "content hash", scoring.content
    if not scoring.seconds:
        yield "speed", "nothing was computed: the partition stood already"
        return
    rate = scoring.rows_per_second
    yield "speed", f"{rate:,.0f} rows/s in {scoring.precision}, from {scoring.began_at} to {scoring.finished_at}"
    yield "tokens", f"{report.tokens(scoring)}; {scoring.padding_share:.1%} of all run is padding"
    if busy := report.busy(scoring):
        yield "devices", busy
    yield "rows run", f"{scoring.distinct:,}: texts that are the same are run once"
    yield "not computed again", report.spared(scoring)
    if rate:
        cost = cost_per_million(price_per_hour, rate)
        yield "cost of a million messages", f"{cost:,.4f} at {price_per_hour:g} per hour"


def _gates(verdicts: Sequence[Verdict]) -> Iterator[Element]:
    yield tag("h2", "Gates")
    yield _table(("gate", "verdict", "value", "bound", ""), map(_gate, verdicts))


def _gate(verdict: Verdict) -> tuple[Child, ...]:
    said = f"{verdict.outcome}{', accepted' if verdict.accepted else ''}"
    value = "–" if verdict.value is None else f"{verdict.value:,.4g}"
    return verdict.gate, tag("span", said, class_=str(verdict.outcome)), value, verdict.bound or "–", verdict.line


def _plots(findings: Findings) -> Iterator[Element]:
    yield tag("h2", "Lengths")
    yield charts.columns("Rows by tokens", findings.lengths, LENGTH_STEP, "tokens")
    yield tag("h2", "Labels")
    if findings.labels:
        yield from _labels(findings)
    else:
        yield tag("p", "The rows have no labels.", class_="dim")
    if findings.pace:
        yield tag("h2", "Throughput over time")
        yield charts.over_time("Rows per second", findings.pace, findings.pace_seconds)
    yield tag("h2", "Quarantine")
    if findings.quarantined:
        reasons = sorted(findings.quarantined.items(), key=lambda it: -it[1])
        yield charts.bars("Lines by reason", [(reason, lines, f"{lines:,}") for reason, lines in reasons])
    else:
        yield tag("p", "No line was set aside.", class_="dim")


def _labels(findings: Findings) -> Iterator[Element]:
    against = f"grey: {findings.before}" if findings.before else "no other day to compare with"
    yield tag("p", f"Share of the rows, the most frequent labels; blue: this day, {against}.", class_="dim")
    now, before = _shares(findings.labels), _shares(findings.labels_before)
    shares = [(name, now.get(name, 0.0), before.get(name, 0.0)) for name in sorted(now.keys() | before.keys())]
    shares.sort(key=lambda it: -max(it[1:]))
    shown, rest = shares[:_LABELS], shares[_LABELS:]
    rows = [(name, share, was, f"{share:.1%} / {was:.1%}" if before else f"{share:.1%}") for name, share, was in shown]
    yield charts.pairs("Labels against the day before", rows)
    if rest:
        others = f"{len(rest)} other labels: {sum(it[1] for it in rest):.1%} of the rows"
        yield tag("p", f"{others}, {sum(it[2] for it in rest):.1%} before." if before else f"{others}.", class_="dim")


def _shares(labels: Mapping[str, int]) -> dict[str, float]:
    total = sum(labels.values())
    return {name: count / total for name, count in labels.items()}


def _stages(scoring: Scoring) -> Iterator[Element]:
    if scoring.seconds:
        yield tag("h2", "Time per stage")
        yield tag("p", "Stages of workers overlap, and are those of all workers together.", class_="dim")
        yield charts.bars(
            "Seconds by stage", [(name, took, f"{took:,.1f} s") for name, took in scoring.seconds.items()]
        )
    if scoring.workers:
        yield tag("h2", "Workers")
        workers = [
            (str(it.pid), str(it.width), str(it.threads or "unknown"), "yes" if it.idle else "no", f"{it.rows:,}")
            for it in scoring.workers
        ]
        yield _table(("process", "threads asked for", "threads used", "idle priority", "rows"), workers)


def _table(header: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    head = [tag("tr", *(tag("th", name) for name in header))]
    return tag("table", *head, *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))


def _pairs(rows: Iterable[tuple[str, str]]) -> Element:
    """Names in the first column, what they are in the second."""
    return tag("table", *(tag("tr", tag("th", name), tag("td", value)) for name, value in rows))
