"""The driver: `score` or `drain` inside spark-submit. Standard library only until the Python is known to be right."""

import argparse
import sys
from collections.abc import Sequence

from batch_job import run_record
from batch_job.launch import lost_task, spark_submit
from batch_job.launch.exit_codes import complain, traced
from shared_model.objects import located


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="score")
    parser.add_argument("--ds", default="", help="the day, YYYY-MM-DD")
    parser.add_argument("--record", type=located, help="the run's record, written by `plan`")
    parser.add_argument("--from", dest="first", default="", help="instead of a day: the first of many")
    parser.add_argument("--to", dest="last", default="", help="the last of them")
    parser.add_argument("--prefix", default="", help="of the Python that the command ran on")
    parser.add_argument("--run", default="", help="name of these many days, by which a later call goes on")
    parser.add_argument("--publish", action="store_true", help="publish the newest of many days at the end")
    parser.add_argument("--force", action="store_true", help="score again what is committed already")
    parser.add_argument("--accept", action="append", default=[], help="a gate whose failure a person lets pass")
    parser.add_argument("--drain", action="store_true", help="answer deferred requests, and leave the day as it is")
    parser.add_argument("--active", action="store_true", help="answer with the active release, not with the run's")
    parser.add_argument("--ends-with", help="end as soon as one of these processes has ended: HOST:PID:PID")
    args = parser.parse_args(arguments)
    if args.ends_with:
        lost_task.end_with(args.ends_with)
    try:
        prefix = args.prefix or run_record.read(args.record).runtime.prefix
    except run_record.RecordError as error:
        return complain("score", str(error))
    if problem := spark_submit.wrong_python(prefix, sys.prefix, "the driver"):
        return complain("score", problem)
    return traced("drain" if args.drain else "score", lambda: _run(args), "in Spark")


def _run(args: argparse.Namespace) -> None:
    # Not sooner: they need the right Python.
    from batch_job.steps import drain, score, score_days
    from shared_model import startup

    # Airflow starts the driver without the wrapper that would have warned.
    startup.begin()
    if args.first:
        sys.exit(score_days.score_days(args.first, args.last, args.force, args.publish, args.run))
    elif args.drain:
        drain.drain_day(args.ds, args.record, args.active)
    else:
        score.score(args.ds, args.record, args.force, tuple(args.accept))
