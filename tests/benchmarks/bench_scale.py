"""python -m tests.benchmarks.bench_scale: the work that surrounds a model, on days too large for one shard or file.

A night of ROWS distinct texts on a standalone cluster of separate processes, from and to an S3 server that takes 10 ms
longer for each request, around an engine that sleeps. CPU time is that of driver, executors and their Python workers,
user and system; tokenising, measured alone, and the server are left out.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import harness, replicas, rounds
from tests.benchmarks.bench_nightly import GROUPS as NIGHTLY
from tests.benchmarks.harness import Target
from tests.benchmarks.nightly import corpus
from tests.benchmarks.nightly import stage as nightly
from tests.benchmarks.rounds import Group, Measured
from tests.benchmarks.scale import stage
from tests.benchmarks.scale.stage import Stage
from tests.benchmarks.scale.usage import Watch

PROGRAM = "bench-scale"
ROWS = 10_000_000
DEFAULT_OUT = Path(".tandem/bench/scale.json")
PACKAGES = ("pyspark", "pyarrow", "deltalake", "obstore", "tokenizers", "moto")
#: Days by the share of ROWS that they hold. The time of a row is that between two of them.
SHARES = {"2026-01-02": 0.05, "2026-01-03": 0.1, "2026-01-04": 0.5, "2026-01-05": 1.0}
_WHOLE, _KILLED = "2026-01-05", "2026-01-06"
#: Of the day that is killed; and texts by which tokenising is measured; and rows of the frame.
_KILLED_SHARE, _TOKENISED, _FRAME_ROWS = 0.5, 20_000, 8_000
_MEGABYTES, _TEN_MILLIONS = 128e6, 10_000_000

Figures = dict[str, float]


def night(on: Stage) -> Figures:
    """Days of growing size; the last is the one that is measured."""
    seconds = dict[int, float]()
    with on.nights() as driver:
        for ds, share in SHARES.items():
            on.write_day(ds, rows := int(on.rows * share))
            with Watch() as used:
                done = driver.ask(ds=ds)
            seconds[rows] = done["seconds"]
            rounds.say(f"  {rows:,} rows in {done['seconds']:.1f} s, {done['files']} files")
    tokenising = tokenising_us(on)
    spent = _per_row(on, used.cpu)
    stages = used.by_stage(done["began"], done["stages"])
    on.note("cpu_us_per_row", _rounded(spent))
    on.note("cpu_us_per_row_by_stage", {name: _rounded(_per_row(on, it)) for name, it in stages.items()})
    on.note("tokenising_us_per_row", round(tokenising, 2))
    on.note("seconds_by_rows", {str(rows): round(value, 2) for rows, value in seconds.items()})
    on.note("whole_day", done)
    return {
        "driver_rss_gb": used.peak / 1e9,
        "plumbing_us_per_row": sum(spent.values()) - tokenising,
        "files_per_10m": files_per_ten_millions(done["rows"], done["files"], done["bytes"]),
        "growth": growth(seconds),
    }


def resume(on: Stage) -> Figures:
    """A driver that is killed at half of a day, and the next: rows that it adopts of those that engines had run."""
    on.write_day(_KILLED, rows := int(on.rows * _KILLED_SHARE))
    run = on.kill_at(_KILLED, rows // 2)
    with on.nights() as driver:
        adopted = driver.ask(ds=_KILLED)["adopted"]
    on.note("rows_run_when_killed", run)
    on.note("rows_adopted", adopted)
    return {"resume_share": adopted / run}


def frame(on: Stage) -> Figures:
    """As `bench_nightly` measures it."""
    found = nightly.Stage(on.place, on.material, _FRAME_ROWS, nightly.Notes(), rounds.say)
    with found:
        return dict(NIGHTLY["frame"].measure(found))


GROUPS: Mapping[str, Group[Stage]] = {
    "night": Group(
        night,
        (
            Target("driver_rss_gb", "GB", "<= 2"),
            Target("plumbing_us_per_row", "us", "<= 60"),
            Target("files_per_10m", "files", "<= 40"),
            Target("growth", "ratio", "<= 1.15"),
        ),
        once=True,
    ),
    "resume": Group(resume, (Target("resume_share", "ratio", ">= 0.95"),), once=True),
    "frame": Group(frame, (Target("frame_of_bare", "ratio", ">= 0.9"),), once=True),
}


def _per_row(on: Stage, seconds: Mapping[str, float]) -> dict[str, float]:
    """Microseconds of a row of the largest day."""
    return {kind: 1e6 * cpu / on.rows for kind, cpu in seconds.items()}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def growth(seconds: Mapping[int, float]) -> float:
    """Time of a row between the two largest days over that between the two smallest. `seconds`: by rows."""
    (least, less), (more, most) = sorted(seconds)[:2], sorted(seconds)[-2:]
    slope = (seconds[most] - seconds[more]) / (most - more)
    return slope / ((seconds[less] - seconds[least]) / (less - least))


def files_per_ten_millions(rows: int, files: int, size: int) -> float:
    """A smaller day stands for the larger one by its bytes, because its last file is not full."""
    if rows >= _TEN_MILLIONS:
        return files * _TEN_MILLIONS / rows
    return math.ceil(size / rows * _TEN_MILLIONS / _MEGABYTES)


def tokenising_us(on: Stage) -> float:
    """CPU time of a text, all threads together, measured without anything beside it."""
    encoder = on.place.store.open(on.place.first).encoder()
    texts = [f"{text} {number}" for number, text in enumerate(on.material.texts[:_TOKENISED])]
    encoder.encode_many(texts[:100])
    started = time.process_time()
    encoder.encode_many(texts)
    return 1e6 * (time.process_time() - started) / len(texts)


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    chosen = rounds.choose(GROUPS, args.only)
    material = corpus.load(rounds.data_folder(args.data))
    rounds.say(f"texts: {material.source}")
    with replicas.place() as place, stage.opened(place, material, args.rows) as on:
        found = rounds.measure_on(on, GROUPS, chosen, f"{args.rows:,} rows")
    conditions: dict[str, Any] = {"rows": args.rows, "texts": material.source, **on.notes}
    return Measured(rounds.targets(GROUPS, chosen), [found], conditions)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    made.add_argument("--only", default="", help=f"groups to measure, by comma, of {', '.join(GROUPS)}")
    made.add_argument("--rows", type=int, default=ROWS, help="of the largest day")
    made.add_argument("--data", type=Path, help="folder with irc/messages.jsonl.gz")
    return made


if __name__ == "__main__":
    sys.exit(main())
