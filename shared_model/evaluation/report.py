"""Writes a release's report, the gate's measurements on this machine, as JSON and as Markdown.

It lies beside the release's files and outside its id, because measurements differ between machines.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from shared_model.evaluation import parity
from shared_model.evaluation.agreement import RULES
from shared_model.evaluation.calibration import Bin
from shared_model.evaluation.parity import Parity
from shared_model.evaluation.verdict import HeadReport, ReleaseReport, Tried, Verdict
from shared_model.output import OutputKind
from shared_model.releases import verdict_signature
from shared_model.releases.store import Release
from shared_model.types import Precision

MARKDOWN, JSON = "report.md", verdict_signature.REPORT

#: Letters of an example's text that are shown.
_TEXT_SHOWN = 120
#: Characters of a probability of 1 in the reliability diagram.
_DIAGRAM_WIDTH = 30


def write(release: Release, report: ReleaseReport) -> None:
    """Write both forms beside a release's files, unsigned."""
    verdict_signature.withdraw(release)
    release.write_note(MARKDOWN, page(report).encode())
    release.write_note(JSON, json.dumps(report.to_document(), indent=1).encode() + b"\n")


def tried_before(release: Release) -> tuple[Tried, ...]:
    """The recipes that the build tried, from its report; empty if that is missing or damaged."""
    try:
        tried = json.loads(release.read_note(JSON) or b"{}").get("tried", [])
        return tuple(Tried(one["recipe"], one["agreement"], tuple(one["failures"])) for one in tried)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def calibrated_before(release: Release) -> str:
    """The texts that the build calibrated INT8 on, in words, from its report; empty if that says nothing."""
    try:
        return str(json.loads(release.read_note(JSON) or b"{}").get("calibration", ""))
    except (ValueError, AttributeError):
        return ""


def page(report: ReleaseReport) -> str:
    recipes = [(t.recipe, _known(t.agreement, ".2%"), "; ".join(t.failures) or "passed") for t in report.tried]
    confusion = [
        (_named(v, head), c.reference, c.variant, str(c.texts))
        for v in report.variants
        for head, found in (("", v.confusion), *((it.head, it.confusion) for it in v.heads))
        for c in found
    ]
    sections = (
        _summary(report),
        _refusals(report),
        _agreement(report),
        *(section for head in report.every_head for section in _calibration(report, head)),
        _titled("Recipes of INT8, in the order they were tried:", ("recipe", "agreement", "verdict"), recipes),
        _latency(report),
        _titled(
            "Where a variant names another label than fp32, most frequent first:",
            ("variant", "fp32 says", "the variant says", "texts"),
            confusion,
        ),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _summary(report: ReleaseReport) -> list[str]:
    return [
        f"# {report.release}: {'passed' if report.passed else 'REFUSED'}",
        "",
        *(f"- {failure}" for failure in report.failures),
        *(f"- {v.name} {failure}" for v in report.variants for failure in v.failures),
        *(f"- {v.name} slow here: {v.slow_here}" for v in report.variants if v.slow_here),
        *(f"- {line}" for head in report.every_head for line in _head_summary(report, head)),
        f"- INT8 calibrated on {report.calibration or 'texts'}, sha256 `{report.calibration_sha256}`",
        f"- INT8 made by: {report.quantisation}",
        f"- not proven on this machine: {', '.join(report.unproven) or 'none'}",
    ]


def _head_summary(report: ReleaseReport, head: HeadReport) -> Iterator[str]:
    texts = next((measured.texts for _, measured in parities(report, head.head)), 0)
    if report.heads:
        yield f"head {head.head}:"
    yield f"output: {head.output.replace('_', ' ')}"
    yield f"judged on {texts} {head.evaluation} texts, sha256 `{head.evaluation_sha256}`"
    yield from (f"agreement also on {one.texts} {one.source} texts, sha256 `{one.sha256}`" for one in head.added)
    yield from (head.quality.in_words() if head.quality else ())
    yield from losses_in_words(report, head)
    yield from calibration_in_words(head)


def parities(report: ReleaseReport, head: str) -> list[tuple[Verdict, Parity]]:
    """The variants that ran, and how each compares as one head."""
    found = ((variant, variant.parity_of(head, report.head)) for variant in report.variants)
    return [(variant, measured) for variant, measured in found if measured]


def losses_in_words(report: ReleaseReport, head: HeadReport) -> Iterator[str]:
    """The losses of accuracy that the texts can show for each variant as one head, or why none is judged."""
    compared = [(v, measured) for v, measured in parities(report, head.head) if v.precision != Precision.FP32]
    if compared and (why := parity.unjudged(compared[0][1], OutputKind(head.output))):
        yield why
        return
    for variant, measured in compared:
        if measured.accuracy is not None and measured.discordance is None:
            yield f"{variant.name}: a rank correlation has no paired test; any loss above the bound is refused"
        if measured.discordance is not None:
            shown = [f"{_known(points, '.2f')} points" for points in measured.detected_points]
            yield (
                f"{variant.name}: it or fp32 alone is right on {measured.discordance:.2%} of the labelled texts; at "
                f"this discordance they show a loss of {shown[0]} with 80 % probability, of {shown[1]} with 95 %"
            )


def calibration_in_words(head: HeadReport) -> Iterator[str]:
    """How far fp32's probabilities are from observed shares, or why that is not known; nothing without
    probabilities."""
    if head.quality and head.quality.calibration:
        yield from head.quality.calibration.in_words()
    elif head.output in (OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL):
        yield "no text is labelled: build fits no temperature, and the calibration is not measured (--eval)"


def _refusals(report: ReleaseReport) -> list[str]:
    """Advice for a refused release, and the worst examples."""
    if report.passed:
        return []
    lines = ["## Next steps", "", *_advice(report)]
    rows = [
        (_named(v, head), _cut(e.text), e.reference or "–", e.variant or "–", e.distance)
        for v in report.variants
        for head, found in (("", v.examples), *((it.head, it.examples) for it in v.heads))
        for e in found
    ]
    if rows:
        header = ("variant", "text", "fp32 says", "the variant says", "how far")
        lines += ["", "Where a refused variant has least excuse:", "", *_table(header, rows)]
    return lines


def _advice(report: ReleaseReport) -> Iterator[str]:
    if report.failures:
        yield "- The model itself is refused, whatever its variants: train it on more examples, or judge it on others."
    refused = [variant for variant in report.variants if not variant.passed]
    if any(not it.passed for v in refused for it in v.parities):
        yield (
            "- Labels or values differ: build again with `--calibrate` and a sample of the texts the model will see "
            "(500 lines or more; more help) unless INT8 is calibrated on one, and with `--eval` if you have labels."
        )
    if any(v.parity is None for v in refused):
        yield "- A variant does not run: its line above says what failed; other variants are not affected."
    yield (
        "- If you accept it all the same, change the setting that a line above names, and judge again: "
        f"`python -m shared_model gate --release {report.release}`."
    )


def _agreement(report: ReleaseReport) -> list[str]:
    accuracy = RULES[OutputKind(report.output)].accuracy
    columns = ("agreement", "where clear", "at most", accuracy, "points lost", "McNemar p", "max Δ", "MB")
    rows = [
        (_named(variant, head), *_agreement_cells(variant, measured))
        for variant in report.variants
        for head, measured in (("", variant.parity), *((it.head, it.parity) for it in variant.heads))
    ]
    return _table(("variant", "compiled", *columns), rows)


def _named(variant: Verdict, head: str) -> str:
    """`head`: empty for the first."""
    return f"{variant.name} {head}".rstrip()


def _agreement_cells(variant: Verdict, measured: Parity | None) -> tuple[str, ...]:
    size = f"{variant.size_bytes / 1e6:.1f}"
    if measured is None:
        return (*["–"] * 8, size)
    return (
        variant.compiled or "–",
        f"{measured.agreement:.2%}",
        _known(measured.clear_agreement, ".2%"),
        _known(measured.clear_bound, ".2%"),
        _known(measured.accuracy, ".2%"),
        _known(measured.accuracy_drop_points, ".2f"),
        _known(measured.loss_p, ".3f"),
        f"{measured.max_difference:.4f}",
        size,
    )


def _calibration(report: ReleaseReport, head: HeadReport) -> list[list[str]]:
    """A head's reliability diagram, and its accuracy by the share of texts that are answered; nothing if they were not
    measured."""
    measured = head.quality.calibration if head.quality else None
    if measured is None:
        return []
    of = f" as head {head.head}" if report.heads else ""
    bins = [
        (f"{it.low:.3f}", str(it.count), f"{it.confidence:.3f}", f"{it.accuracy:.3f}", _bar(it)) for it in measured.bins
    ]
    curve = [(f"{it.confidence:.3f}", f"{it.coverage:.2%}", f"{it.accuracy:.2%}") for it in measured.curve]
    title = f"Reliability of fp32's probabilities{of} (█ share that came true, ┃ mean probability):"
    answered = f"Accuracy of fp32{of} if only texts of at least this confidence are answered:"
    return [
        _titled(title, ("from", "number", "mean probability", "came true", "0 to 1"), bins),
        _titled(answered, ("confidence", "coverage", "accuracy"), curve),
    ]


def _bar(held: Bin) -> str:
    cells = ["█"] * round(held.accuracy * _DIAGRAM_WIDTH)
    cells += ["·"] * (_DIAGRAM_WIDTH - len(cells))
    cells[min(int(held.confidence * _DIAGRAM_WIDTH), _DIAGRAM_WIDTH - 1)] = "┃"
    return "".join(cells)


def _latency(report: ReleaseReport) -> list[str]:
    """One row per variant and number of threads."""
    timed = [latency for variant in report.variants for latency in variant.latency]
    shapes = list(dict.fromkeys((latency.rows, latency.tokens) for latency in timed))
    rows = [
        (variant.name, str(threads), *(f"{it.milliseconds:.2f}" for it in variant.latency if it.threads == threads))
        for variant in report.variants
        for threads in dict.fromkeys(latency.threads for latency in variant.latency)
    ]
    header = ("variant", "threads", *(f"{rows}×{tokens}" for rows, tokens in shapes))
    return _titled("Latency of one call by rows × tokens, median in ms:", header, rows)


def _titled(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table under its title; nothing without rows."""
    return [title, "", *_table(header, rows)] if rows else []


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = (header, ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(text: str) -> str:
    """Escape a label or text, so that it cannot end a cell or a line."""
    return " ".join(text.split()).replace("|", "\\|")


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…"


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
