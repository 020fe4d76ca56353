"""python -m tests.benchmarks.bench_soak: hours of a router, two replicas and Redis, and whether they keep their memory.

Meanwhile callers use every lane, cancel calls, leave streams and submit work; releases are promoted and rolled back,
certificates rotated, nights scored and published. A figure of memory is by which share of its beginning a straight line
through a process's proportional set size rises, without the first 15 minutes, or without the first half of a run that
is shorter than 30.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import redis

from shared_model.errors import TandemError
from tests.benchmarks import harness, replicas
from tests.benchmarks.harness import CannotMeasure, Target
from tests.benchmarks.replicas import Place
from tests.benchmarks.soak import events, memory
from tests.benchmarks.soak.load import Load
from tests.certified import Certified, certified
from tests.realtime_service.conftest import RunningService

DEFAULT_OUT = Path(".tandem/bench/soak.json")
PACKAGES = ("openvino", "grpcio", "redis", "protobuf", "pyspark")
#: The lanes of each process.
PROCESSES = {"latency": "latency,dynamic", "throughput": "throughput", "router": "none"}
MINUTES, SAID_SECONDS = 120.0, 60.0
#: Of what Redis says each minute, one in so many is kept.
ACCOUNT_EVERY = 10
#: Ends of deferred requests are kept for so long, so that Redis has as many after 15 minutes as after hours.
KEEP_SECONDS = "600"

TARGETS = (
    *(Target(f"{name}_pss_growth", "share", "<= 0.05") for name in (*PROCESSES, "redis")),
    Target("lost", "calls", "<= 0"),
    Target("failed_events", "events", "<= 0"),
)


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place = harness.place(PACKAGES)
    try:
        figures, conditions = measure(60 * args.minutes)
    except (CannotMeasure, TandemError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    runs = {name: [value] for name, value in figures.items()}
    result = harness.result(TARGETS, runs, place, {"minutes": args.minutes, **conditions})
    result.write(args.out)
    print(f"\n{result.table()}\n\nwritten to {args.out}")
    return 0


def measure(seconds: float) -> tuple[dict[str, float], dict[str, object]]:
    """Figures, and what else a reader needs to know. Raises: CannotMeasure."""
    with deployed() as (place, certificates, running):
        pids = {name: it.process.pid for name, it in running.items()}
        pids["redis"] = int(place.client.info()["process_id"])
        ca = certificates.ca.read_bytes()
        with (
            memory.Watched(pids) as watched,
            Load(running["router"].address, ca) as load,
            tempfile.TemporaryDirectory(prefix="tandem-soak-") as folder,
            events.happening(place, certificates, Path(folder)) as happened,
        ):
            accounts = wait(seconds, load, running, place.client)
    warm = memory.warm_seconds(seconds)
    figures = {f"{name}_pss_growth": memory.growth(it, warm) for name, it in watched.samples.items()}
    failed = sum(count for name, count in happened.items() if name.startswith("failed "))
    figures |= {"lost": float(load.lost), "failed_events": float(failed)}
    megabytes = {name: memory.course(it) for name, it in watched.samples.items()}
    told = {"ends": dict(load.ended), "events": dict(happened), "problems": load.problems, "pss_mb": megabytes}
    told["redis"] = accounts[::ACCOUNT_EVERY]
    return figures, {**told, "without_first_s": warm}


@contextlib.contextmanager
def deployed() -> Iterator[tuple[Place, Certified, dict[str, RunningService]]]:
    """The processes of PROCESSES, with TLS."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-soak-")))
        place, certificates = stack.enter_context(replicas.place()), certified(folder)
        environment = {
            **certificates.environment(),
            "TANDEM_DEFERRED_KEEP_SECONDS": KEEP_SECONDS,
            "TANDEM_WORKERS": "1",
        }
        yield (
            place,
            certificates,
            {
                name: stack.enter_context(replicas.replica(place, TANDEM_LANES=lanes, **environment))
                for name, lanes in PROCESSES.items()
            },
        )


def wait(
    seconds: float, load: Load, running: Mapping[str, RunningService], client: "redis.Redis"
) -> list[dict[str, float]]:
    """Tells each minute how calls ended; returns what Redis then said of itself. Raises: CannotMeasure if a process
    ends."""
    began, accounts = time.monotonic(), [memory.account(client)]
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(left, SAID_SECONDS))
        if ended := [name for name, it in running.items() if it.process.poll() is not None]:
            raise CannotMeasure(f"{', '.join(ended)} ended with {running[ended[0]].process.returncode}; see its log")
        ends = ", ".join(f"{end} {count}" for end, count in sorted(load.ended.items()))
        print(f"{(time.monotonic() - began) / 60:.0f} min: {ends}", flush=True)
        accounts.append(memory.account(client))
    return accounts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long it runs (default %(default)s)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
