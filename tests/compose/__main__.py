"""make compose: docker-compose.yml in an engine, on stand-ins of base images: a night, calls, an alert, recovery."""

import argparse
import signal
import sys
from pathlib import Path

from tests.compose import images, serving_image
from tests.compose.engine import Engine
from tests.compose.log import Log
from tests.compose.stack import DAY, Stack
from tests.conftest import REPOSITORY
from tests.realtime_service.conftest import eventually

FOLDER = REPOSITORY / ".tandem" / "compose"
BACKUPS = ("backup-redis", "backup-postgres", "backup-files")
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
        log.say(f"a request that can wait: {stack.defer(TEXT)}")
        log.say(f"night of {DAY} by Airflow and Spark")
        stack.night()
        log.say(f"  success: {stack.rows()} rows in the table")
        text = stack.text_of_the_night()
        stack.call(text)
        eventually(stack.is_precomputed, every=2)
        log.say(f"a call with a text of that night is answered from it: {text!r}")
        log.say(f"up of each replica, by Prometheus: {stack.query('up')}")
        log.say(f"metrics over TLS: {len(stack.published('https://127.0.0.1:9464/metrics').splitlines())} lines")
        log.say("stopping a replica: its alert")
        stack.alert()
        log.say("  arrived at the webhook")
        copies = {name: stack.compose("run", "--rm", name).split() for name in BACKUPS}
        for name, files in copies.items():
            log.say(f"{name}: {' '.join(files)}")
        before = stack.rows()
        log.say("down, without the volumes of Redis, files and keys; they come back from copies")
        stack.lose_and_restore(*copies["backup-redis"], *copies["backup-files"])
        answer = stack.call(TEXT, "--lane", "latency")
        log.say(f"call in the lane latency: {answer['results'][0]['labels'][0]} by {answer['release']}")
        assert stack.rows() == before
        log.say(f"  the night's {before} rows are there")
    finally:
        stack.stop()
        log.say("docker-compose down")


if __name__ == "__main__":
    sys.exit(main())
