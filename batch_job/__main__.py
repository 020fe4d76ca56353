"""python -m batch_job: the nightly run, step by step. Steps exchange one run record.

Exit codes: 0 done, 1 a gate refused the partition, 2 input, environment or settings are wrong, 3 a newer attempt owns
the partition, 4 (of plan) the messages are not there. Whatever nobody foresaw ends with 1, too.
"""

import argparse
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from batch_job import launch, plan, planning, printing, publishing, record, reporting
from batch_job.checks import gate
from batch_job.commits.fence import connect
from batch_job.job import open_record
from batch_job.planning import Patience
from batch_job.reporting import report
from batch_job.settings import InputSettings, NightlySettings
from shared_model import settings
from shared_model.errors import JobError
from shared_model.redis_server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    return launch.exit_code(args.step, lambda: args.run(args, settings.load(StateSettings)))


def _plan(args: argparse.Namespace, state: StateSettings) -> None:
    planning.check_day(args.ds)
    path = args.record or Path(plan.record_path(args.ds, f"manual-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"))
    inputs = settings.load(InputSettings, input_wait_seconds=args.wait)
    patience = Patience(inputs.input_wait_seconds, inputs.input_poll_seconds)
    with RedisServer(state) as server, connect(server.url) as client:
        run = planning.plan_run(state, client, args.ds, path.stem, inputs, patience)
    record.write(path, run)
    print(f"ds={run.ds}: {run.input.lines:,} lines in {len(run.input.files)} files, release {run.release}")
    if unchecked := sum(file.unchecked for file in run.input.files):
        print(f"{unchecked} of them unchecked: Parquet without page checksums, in which damage may go unnoticed")
    print(f"record {path}")


def _score(args: argparse.Namespace, state: StateSettings) -> None:
    accepted = [f"--accept={gate}" for gate in args.accept]
    _spark_submit(args, state, [*(["--force"] if args.force else []), *accepted])


def _drain(args: argparse.Namespace, state: StateSettings) -> None:
    _spark_submit(args, state, ["--drain"])


def _spark_submit(args: argparse.Namespace, state: StateSettings, flags: list[str]) -> None:
    master = settings.load(NightlySettings).spark_master
    command = [*plan.spark_submit_command(args.ds, str(_record(args, state)), master), *flags]
    environment = {**os.environ, **plan.spark_environment({**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix})}
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)  # noqa: S606 (spark-submit takes our place, exit code and all)


def _publish(args: argparse.Namespace, state: StateSettings) -> None:
    path, nightly = _record(args, state), settings.load(NightlySettings)
    with RedisServer(state) as server, connect(server.url) as client:
        run = publishing.publish_run(state, nightly, client, open_record(path, args.ds), args.publish)
    record.write(path, run)
    print(f"ds={run.ds}: {report.publication(run)}")


def _rollback(args: argparse.Namespace, state: StateSettings) -> None:
    planning.check_day(args.ds)
    nightly = settings.load(NightlySettings)
    with RedisServer(state) as server, connect(server.url) as client:
        release = args.release or pointer.read(Store.of(state), client).active
        done = publishing.roll_back(state, nightly, client, release, args.ds)
    answers = f"epoch {done.now} answers" if done.now else "no epoch before it is kept, so every text is computed"
    print(f"release {done.release}: epoch {done.was} is gone, {answers}")


def _report(args: argparse.Namespace, state: StateSettings) -> None:
    path = _record(args, state)
    run = open_record(path, args.ds)
    written = reporting.write(path, run, settings.load(NightlySettings).price_per_hour)
    print(report.summary(run))
    print("\n".join(f"  report      {file}" for file in written))
    if problem := report.discrepancy(run):
        raise JobError(problem)


def _read(args: argparse.Namespace, state: StateSettings) -> None:
    planning.check_day(args.ds)
    for line in printing.lines(state.scores_table, args.ds, args.limit, args.json):
        print(line)


def _record(args: argparse.Namespace, state: StateSettings) -> Path:
    """The record named, else the newest of the day."""
    given: Path | None = args.record
    if given:
        return given
    planning.check_day(args.ds)
    folder = state.runs_dir / str(args.ds)
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise JobError(f"{folder} holds no run; run `python -m batch_job plan --ds {args.ds}` first")
    return found[-1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m batch_job", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    planned = _step(
        steps, "plan", _plan, "pin the release, check and fingerprint the day's messages, write the run record"
    )
    planned.add_argument("--wait", help="seconds to wait for messages that are not there; default: a setting")
    score = _step(steps, "score", _score, "score the day in Spark and commit the scores")
    score.add_argument("--force", action="store_true", help="score again what is committed already")
    accept = "commit though this gate fails: a person has looked; may be given again"
    score.add_argument("--accept", action="append", default=[], choices=gate.ACCEPTABLE, help=accept)
    _step(steps, "drain", _drain, "answer deferred requests in Spark, without scoring the day")
    publish = _step(steps, "publish", _publish, "publish the committed scores to Redis, unless a newer day answers")
    publish.add_argument("--publish", action="store_true", help="whatever answers now, or was rolled back")
    rollback = _step(steps, "rollback", _rollback, "take the day's published scores back; the epoch before answers")
    rollback.add_argument("--release", default="", help="release id; default: the active one")
    _step(steps, "report", _report, "print the run; fail unless its counts add up")
    read = _step(steps, "read", _read, "print committed scores, tab-separated")
    read.add_argument("--limit", type=_count, default=20, help="rows, 20 unless told; 0: all")
    read.add_argument("--json", action="store_true", help="every column, one JSON object a line")
    return parser


def _count(text: str) -> int:
    """A number of rows. Raises: ValueError, which argparse turns into a line and exit code 2."""
    if (number := int(text)) < 0:
        raise ValueError
    return number


def _step(
    steps: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace, StateSettings], None],
    help: str,
) -> argparse.ArgumentParser:
    step = steps.add_parser(name, help=help)
    step.set_defaults(run=run)
    step.add_argument("--ds", required=True, help="the day, YYYY-MM-DD")
    step.add_argument("--record", type=Path, help="run record; default: a new one for plan, else the day's newest")
    return step


if __name__ == "__main__":
    sys.exit(main())
