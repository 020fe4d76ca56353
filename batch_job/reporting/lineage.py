"""Where scores come from, for catalogues of data: a run's archive, its table, and which columns follow from which."""

import os

from batch_job.run_record import ARCHIVE, RunRecord, State
from shared_model.objects import Location

#: Columns of the scores table that follow from a message's text.
_OF_TEXT = (
    "text_hash",
    "label",
    "score",
    "encoding_key",
    "tokens",
    "truncated",
    "top_k",
    "vector",
    "abstained",
    "heads",
)
#: States of a run whose scores are the day's.
_COMMITTED = (State.COMMITTED, State.UNCHANGED, State.PUBLISHED)


def document(run: RunRecord, scores: Location) -> dict[str, object]:
    """`columns`: of the scores table, each with those of the input that it follows from. `scores`: the table; empty
    where the run committed nothing."""
    columns = run.input.columns
    texts = [name for name in columns.names if name != columns.id]
    return {
        "release": run.release,
        "day": run.ds,
        "input": _archive(run),
        "scores": str(scores) if run.state in _COMMITTED else "",
        "columns": {"id": [columns.id], **dict.fromkeys(_OF_TEXT, texts)},
    }


def _archive(run: RunRecord) -> str:
    """The folder or table of all days: with a data set for each day, a catalogue would show as many."""
    identity = run.input.identity
    if identity.startswith(ARCHIVE):
        return os.path.dirname(run.input.folder)
    # Its name has the day in braces.
    return os.path.dirname(identity.partition("{")[0])
