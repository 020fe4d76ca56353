"""When calls are due: seconds from the start, fixed before the first is sent and whatever the answers do."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def poisson(rate: float, seconds: float, seed: int) -> Times:
    """Arrivals at `rate` per second on average, with independent gaps."""
    draw = np.random.default_rng(seed)
    gaps = draw.exponential(1 / rate, int(rate * seconds * 1.2) + 100)
    due = np.cumsum(gaps)
    return np.asarray(due[due < seconds])


def evenly(rate: float, seconds: float) -> Times:
    return np.arange(0.0, seconds, 1 / rate)


def gamma(rate: float, variation: float, seconds: float, seed: int) -> Times:
    """Arrivals whose independent gaps have this coefficient of variation: 1 is Poisson, more comes in bursts.

    They are `rate` · `seconds`, stretched to that time: a sample of few bursts would else miss its rate by far.
    """
    shape = variation**-2
    gaps = np.random.default_rng(seed).gamma(shape, 1 / (rate * shape), round(rate * seconds))
    due = np.cumsum(gaps) - gaps[0]
    return np.asarray(due * (seconds * (1 - 1 / len(due)) / due[-1]))


def replayed(recorded: Times, rate: float, seconds: float, start: float = 0.0) -> Times:
    """Recorded arrivals, faster or slower by a factor so that they come at `rate` on average, over and over.

    The shape of the gaps stays. `recorded`: seconds from the first, ascending; `start`: the share of a lap that is left
    out at the beginning.
    """
    lap = recorded[-1] * len(recorded) / (len(recorded) - 1)
    factor, skipped = len(recorded) / lap / rate, start * lap
    laps = int(np.ceil(seconds / (lap * factor) + start))
    due = np.concatenate([(recorded + number * lap - skipped) * factor for number in range(laps)])
    return np.asarray(due[(due >= 0) & (due < seconds)])


def variation(due: Times) -> float:
    """The coefficient of variation of the gaps."""
    gaps = np.diff(due)
    return float(gaps.std() / gaps.mean())


def read(path: Path) -> Times:
    """A CSV file with a column `seconds`."""
    with path.open(newline="") as lines:
        return np.array([float(row["seconds"]) for row in csv.DictReader(lines)])
