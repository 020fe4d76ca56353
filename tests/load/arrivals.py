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


def replayed(recorded: Times, rate: float, seconds: float) -> Times:
    """Recorded arrivals, faster or slower by a factor so that they come at `rate` on average, over and over.

    The shape of the gaps stays. `recorded`: seconds from the first, ascending.
    """
    lap = recorded[-1] * len(recorded) / (len(recorded) - 1)
    factor = len(recorded) / lap / rate
    laps = int(np.ceil(seconds / (lap * factor)))
    due = np.concatenate([(recorded + number * lap) * factor for number in range(laps)])
    return np.asarray(due[due < seconds])


def read(path: Path) -> Times:
    """A CSV file with a column `seconds`."""
    with path.open(newline="") as lines:
        return np.array([float(row["seconds"]) for row in csv.DictReader(lines)])
