"""The question that a refused run puts to a person, in Markdown: what was refused, the figures, where the report is."""

import re
from collections.abc import Iterator, Sequence

from batch_job import identity, reporting
from batch_job.reporting import plain_text
from batch_job.run_record import Findings, RunRecord
from shared_model.objects import Location

#: Labels that are shown, those that moved most.
_MOST = 5
#: Characters that mean something to Markdown or HTML. Names of labels and of files are other people's.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#&])")


def subject(run: RunRecord, gates: Sequence[str]) -> str:
    model = identity.model_of(run.input.identity)
    return f"ds={run.ds}{f', model {model}' if model else ''}: commit the scores that {' and '.join(gates)} refused?"


def body(run: RunRecord, findings: Findings, record: Location) -> str:
    refused = [f"- **{it.gate}**: {_plain(f'{it.line} ({it.bound})')}" for it in findings.verdicts if it.refuses]
    quarantined = sum(findings.quarantined.values())
    facts = [
        f"- input: {_plain(f'{plain_text.source(run.input)}; {run.input.identity}')}",
        f"- {findings.rows:,} rows scored and {quarantined:,} lines quarantined, by release {run.release}",
        f"- report: {_plain(str(reporting.page_of(record)))}",
    ]
    ends = "Approving commits these scores; nothing is scored again. Rejecting leaves the day as it is."
    return "\n".join([*refused, "", *_moved(findings), *facts, "", ends])


def _moved(findings: Findings) -> Iterator[str]:
    """A table of the labels whose shares have moved most; nothing without a day to compare with."""
    now, before = sum(findings.labels.values()), sum(findings.labels_before.values())
    if not (now and before):
        return
    shares = {
        label: (findings.labels.get(label, 0) / now, findings.labels_before.get(label, 0) / before)
        for label in findings.labels.keys() | findings.labels_before.keys()
    }
    most = sorted(shares.items(), key=lambda it: (-abs(it[1][0] - it[1][1]), it[0]))[:_MOST]
    yield f"| label | {findings.before} | this day |"
    yield "|---|---|---|"
    yield from (f"| {_plain(label)} | {was:.1%} | {share:.1%} |" for label, (share, was) in most)
    yield ""


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
