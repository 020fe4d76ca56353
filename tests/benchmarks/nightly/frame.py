"""python -m tests.benchmarks.nightly.frame RELEASE: a pandas frame through `scorer.score`. RELEASE: its path."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

import batch_job
from batch_job.dataframes.scorer import Scorer
from tests.load import child


class Frame:
    """Answers the benchmark's questions."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def ask(self, texts: Sequence[str]) -> dict[str, float]:
        """rows/s from a frame to the frame with its scores."""
        frame = pd.DataFrame({"text": texts})
        started = time.perf_counter()
        self._scorer.score(frame, progress=False)
        return {"rows_per_second": len(texts) / (time.perf_counter() - started)}


def main(release: str) -> None:
    scorer = batch_job.scorer(release)
    # Every row on its own, as the bare engine runs them.
    child.answer({}, Frame(replace(scorer, options=replace(scorer.options, deduplicate=False))).ask)


if __name__ == "__main__":
    main(*sys.argv[1:])
