"""Rows per second over a run: pure arithmetic on the reports of tasks."""

from collections.abc import Iterable

import numpy as np

#: Parts that a night is shown in.
PARTS = 60


def pace(files: Iterable[tuple[float, float, int]]) -> tuple[float, tuple[float, ...]]:
    """Seconds of one part, and rows per second in each of PARTS of them, of all files together.

    files: when the first row was begun and the last one written, Unix time, and rows; these count as done evenly.
    Nothing where no file has rows.
    """
    spans = np.array([file for file in files if file[2] and file[0]], np.float64).reshape(-1, 3)
    if not len(spans):
        return 0.0, ()
    began, ended, rows = spans.T
    ended = np.maximum(ended, began + 1e-3)
    edges = np.linspace(began.min(), ended.max(), PARTS + 1)
    done = np.clip((edges[:, None] - began) / (ended - began), 0.0, 1.0) @ rows
    part = float(edges[1] - edges[0])
    return part, tuple(np.round(np.diff(done) / part, 1).tolist())
