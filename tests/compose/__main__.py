"""make compose: docker-compose.yml in an engine, on stand-ins of the base images: a night, calls, an alert, backups."""

import argparse
import signal
import sys
from pathlib import Path

from tests.compose import images, serving_image
from tests.compose.engine import Engine
from tests.compose.log import Log
from tests.compose.stack import DAY, Stack
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / ".tandem" / "compose"
TEXT = "Someone stole my card, please block it!"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=FOLDER / "run.txt", help="the lines of the run (default %(default)s)"
    )
    parser.add_argument("--only-build", action="store_true", help="the images alone, which the next run finds")
    args = parser.parse_args()
    # The engine and its containers are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = Log(args.out, FOLDER / "details.txt")
    engine = Engine(FOLDER)
    stack = Stack(engine, FOLDER, log)
    with engine.building():
        log.say("engine started; building stand-ins of the base images")
        images.build_stand_ins(engine, FOLDER, log.run)
        log.say("building the images of docker-compose.yml")
        stack.build()
        serving_image.check(engine, log.run, log.say)
    if not args.only_build:
        with engine.apart():
            _use(stack, log)
    return 0


def _use(stack: Stack, log: Log) -> None:
    try:
        log.say("docker-compose up")
        stack.start()
        for name, state in sorted(stack.states().items()):
            log.say(f"  {name}: {state}")
        for lane in ("latency", "throughput"):
            answer = stack.call(TEXT, "--lane", lane)
            best = answer["results"][0]["labels"][0]
            log.say(f"call in the lane {lane}: {best} by {answer['release']}, path {answer['path']}")
        log.say(f"the same over HTTP: {stack.post({'texts': [TEXT]})['results'][0]['labels'][0]}")
        log.say(f"night of {DAY} by Airflow and Spark")
        stack.night()
        log.say("  success")
        log.say(f"up of each replica, by Prometheus: {stack.query('up')}")
        log.say(f"metrics over TLS: {len(stack.published('https://127.0.0.1:9464/metrics').splitlines())} lines")
        log.say("stopping a replica: its alert")
        stack.alert()
        log.say("  arrived at the webhook")
        for name in ("backup-redis", "backup-postgres", "backup-files"):
            log.say(f"{name}: {' '.join(stack.compose('run', '--rm', name).split())}")
    finally:
        stack.stop()
        log.say("docker-compose down")


if __name__ == "__main__":
    sys.exit(main())
