"""make attack: attacks a service, each attack on a fresh one, and says which promises hold."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared_model import storage
from shared_model.errors import TandemError
from tests.attack import observation, oracles
from tests.attack.disturbers import DISTURBERS
from tests.attack.observation import Target
from tests.attack.oracles import Seen
from tests.benchmarks import harness, rounds
from tests.benchmarks.harness import CannotMeasure, Place
from tests.benchmarks.rounds import say

PROGRAM = "attack"
SECONDS = 60.0
INPUTS = 1_000_000
DEFAULT_OUT = Path(".tandem/bench/attack.json")


@dataclass(frozen=True)
class Row:
    """An attack of so many seconds, or inputs, valid calls at its rate of bytes, and the promises that it broke."""

    attack: str
    seconds: float
    inputs: int
    seen: Seen
    control: Seen
    broken: tuple[str, ...]


def main(arguments: list[str] | None = None) -> int:
    """0 when every promise holds, 1 when one does not, 2 when it could not measure."""
    args = _parser().parse_args(arguments)
    place = harness.place(("grpcio", "protobuf", "redis"))
    try:
        chosen = rounds.choose(DISTURBERS, args.only)
        kept = {row.attack: row for row in (_read(args.out) if args.keep else ())}
        for name in chosen:
            kept[name] = _row(name, args.seconds, args.inputs)
            rows = [kept[name] for name in DISTURBERS if name in kept]
            _write(args.out, place, rows)
    except (CannotMeasure, TandemError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    say(f"\n{table(rows)}\n\nwritten to {args.out}")
    return int(any(row.broken for row in rows))


def _write(out: Path, place: Place, rows: Sequence[Row]) -> None:
    """After each attack, because all of them take half an hour."""
    document = {**asdict(place), "attacks": [asdict(row) for row in rows]}
    storage.atomic_write(out, json.dumps(document, indent=1).encode() + b"\n")


def _read(out: Path) -> Iterator[Row]:
    """The attacks of an earlier run. Raises: CannotMeasure."""
    try:
        for row in json.loads(out.read_text())["attacks"] if out.exists() else ():
            seen, control = (_seen(row.pop(name)) for name in ("seen", "control"))
            yield Row(**{**row, "broken": tuple(row["broken"])}, seen=seen, control=control)
    except (ValueError, KeyError, TypeError) as error:
        raise CannotMeasure(f"{out} holds no attacks of this version; remove it, or leave out --keep") from error


def _seen(fields: dict[str, Any]) -> Seen:
    return Seen(**{**fields, "wrong": tuple(map(tuple, fields["wrong"]))})


def _row(name: str, seconds: float, inputs: int) -> Row:
    """One attack on a fresh service, then valid calls at its rate of bytes and over its connections on another."""
    with observation.target() as target:
        seen = _said(name, target, seconds, observation.attack(name, inputs))
    with observation.target() as target:
        control = _said("valid calls", target, seconds, observation.valid(seen.bytes_per_second, seen.connections))
    broken = tuple(oracles.broken(seen, control))
    for line in broken:
        say(f"  BROKEN: {line}")
    return Row(name, seconds, inputs, seen, control, broken)


def _said(name: str, target: Target, seconds: float, disturb: observation.Disturb) -> Seen:
    # The first calls of a process are slower.
    observation.observe(target, 2.0, observation.valid(1_000, 1))
    seen = observation.observe(target, seconds, disturb)
    say(f"{name}: {seen}")
    return seen


_COLUMNS = ("calls", "in_time", "p99_ms", "accept_ms", "callback_ms", "growth_mb", "sent", "bytes_per_second")


def table(rows: Sequence[Row]) -> str:
    """One line an attack: what was seen, with what was seen beside valid calls in brackets."""
    lines = [("attack", *_COLUMNS, "holds")]
    for row in rows:
        cells = [f"{getattr(row.seen, name):.4g} ({getattr(row.control, name):.4g})" for name in _COLUMNS]
        lines.append((row.attack, *cells, "NO" if row.broken else "yes"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    made.add_argument("--only", default="", help=f"attacks, by comma, of {', '.join(DISTURBERS)}")
    made.add_argument("--seconds", type=float, default=SECONDS, help="length of each attack")
    made.add_argument("--keep", action="store_true", help="keep the other attacks that --out holds: run them in pieces")
    made.add_argument("--inputs", type=int, default=INPUTS, help="messages that each fuzzer sends")
    return made


if __name__ == "__main__":
    sys.exit(main())
