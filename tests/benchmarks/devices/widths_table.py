"""The table of `widths` in a README, from the JSON of `make bench-devices`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path


def rows(path: Path) -> Iterator[Sequence[str]]:
    yield "model, INT8", "way", "a call alone", "calls a second", "memory"
    yield ("---",) * 5
    for model, ways in json.loads(path.read_text())["conditions"]["widths"].items():
        for way, speed in ways.items():
            milliseconds, rate, megabytes = speed.values()
            yield model, way, f"{milliseconds:.1f} ms", f"{rate:.1f}", f"{megabytes:,.0f} MB"
