"""python -m batch_job: the nightly run, step by step. Steps exchange one run record.

Exit codes: 0 done, 1 a gate refused the partition, 2 input, environment or settings are wrong, 3 a newer attempt owns
the partition, 4 (of plan) the messages are not there, 6 (of judge) a gate refused the partition and a person may accept
it, 70 an unexpected error: a traceback comes before its line, 75 Redis or the store does not answer, or workers were
killed: try again later.
"""

import argparse
import importlib
import os
import sys

from batch_job import arguments
from batch_job.arguments import Steps, add_record
from batch_job.checks import gate
from batch_job.launch import exit_codes, spark_submit
from batch_job.launch.spark_submit import WAIT_SECONDS
from shared_model import settings, startup
from shared_model.settings import StateSettings

_DAY = "2026-01-14"
_REFUSED, _STALE = "1 refused by a gate", "3 a newer attempt at the day has begun"
_NO_MESSAGES = f"{spark_submit.NO_INPUT} the messages are not there"


def main(arguments: list[str] | None = None) -> int:
    startup.begin()
    args = _parser().parse_args(arguments)
    if args.model:
        # Settings and child processes read it there.
        os.environ["TANDEM_NIGHTLY_MODEL"] = args.model
    return exit_codes.exit_code(args.step, lambda: _run(args, settings.load(StateSettings)))


def _run(args: argparse.Namespace, state: StateSettings) -> None:
    startup.warn_of_open_state(state.state)
    # Each step imports only what it needs: others take longer to import than `score` takes before Spark starts.
    if args.step in ("score", "drain"):
        from batch_job.steps import submit

        (submit.score if args.step == "score" else submit.drain)(args, state)
        return
    importlib.import_module(f".steps.{args.step}", __package__).run(args, state)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m batch_job", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    before = (_add_plan, _add_score, _add_judge, _add_commit, _add_reject)
    after = (_add_drain, _add_publish, _add_rollback, _add_report, _add_read, _add_listings, _add_drift)
    for add in (*before, *after):
        add(steps)
    return parser


def _add_plan(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "plan",
        "pin the release, check and fingerprint the day's messages, write the run record",
        "It reads the schema of every file before any content, so that a missing column is named in seconds. "
        "TANDEM_INPUT_PATH and the settings beside it say where the messages are and what their columns are called.",
        f"--ds {_DAY} --wait 0",
        _NO_MESSAGES,
    )
    add_record(step, "file to write the run record to; default: a new one in STATE/runs/DAY")
    wait = f"seconds to wait for messages that are not there; default: TANDEM_INPUT_WAIT_SECONDS, else {WAIT_SECONDS:g}"
    step.add_argument("--wait", metavar="SECONDS", help=wait)


def _add_score(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "score",
        "score the day in Spark and commit the scores",
        "It scores a planned run, holds the result against the gates, and commits it in one transaction; then it "
        "answers deferred requests. A day that is committed already, from the same input with the same release, is not "
        "scored again. TANDEM_SPARK_MASTER names the cluster, local[*] unless set.",
        f"--ds {_DAY} --accept labels",
        _REFUSED,
        _STALE,
    )
    add_record(step, "run record to score; default: the day's newest")
    step.add_argument("--force", action="store_true", help="score again what is committed already; default: do not")
    _add_accept(step)
    codes = f"end with 0 where the day is scored already, else with {spark_submit.CHANGED}"
    check = f"start no Spark: {codes}; default: score it"
    step.add_argument("--check", action="store_true", help=check)


def _add_judge(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "judge",
        "say how the gates judged a run, and what a person is asked",
        "It prints the status of a committed run. Of a run that a gate refused and that a person may accept, it prints "
        "the figures and where the report is; `commit` or `reject` answers.",
        f"--ds {_DAY}",
        _REFUSED,
        _STALE,
        f"{spark_submit.WAITING} a gate refused the day, and a person may accept it",
    )
    add_record(step, "run record to look at; default: the day's newest")
    step.add_argument("--json", action="store_true", help="the question as one JSON object; default: as text")


def _add_commit(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "commit",
        "accept what a gate refused: commit the scores that wait, without scoring again",
        "A person has looked. The commit holds their name, the time and their comment. It fails if the day was "
        "attempted again meanwhile, its input changed or its release was revoked.",
        f"--ds {_DAY} --accept labels --by ada --comment checked",
        _REFUSED,
        _STALE,
    )
    add_record(step, "run record whose scores wait; default: the day's newest")
    _add_accept(step)
    _add_answer(step)


def _add_reject(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "reject",
        "turn down what a gate refused: the scores that wait are given up",
        "The day stays as it is, and may be scored again.",
        f"--ds {_DAY} --by ada --comment duplicates",
    )
    add_record(step, "run record whose scores wait; default: the day's newest")
    _add_answer(step)
    step.add_argument("--expired", action="store_true", help="no answer came in time; default: a person rejects")


def _add_accept(step: argparse.ArgumentParser) -> None:
    accept = (
        "commit although this gate fails, after a person has looked; may be given again; default: none. labels: the "
        "distribution of labels differs from that of an earlier day. agreement: INT8 and half precision differ on "
        "texts that are clear to half precision. agreement-drop: they differ on more texts than on an earlier day"
    )
    step.add_argument("--accept", action="append", default=[], choices=gate.ACCEPTABLE, help=accept)


def _add_answer(step: argparse.ArgumentParser) -> None:
    step.add_argument("--by", default="", metavar="NAME", help="the person; default: the user of this process")
    step.add_argument("--comment", default="", metavar="TEXT", help="why; default: none")


def _add_drain(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "drain",
        "answer deferred requests in Spark, without scoring a day",
        "It commits the answers beside a day's scores, which stay as they are. With a day, the release of its run "
        "answers; without one, the active release, and the answers go to the latest day that was planned. "
        "TANDEM_DEFERRED_DRAIN_LIMIT bounds how many.",
        f"--ds {_DAY}",
        day="the day, YYYY-MM-DD; default: the latest that was planned",
    )
    add_record(step, "run record whose release answers; default: the day's newest")
    codes = f"end with 0 where nothing is to be answered, else with {spark_submit.CHANGED}"
    check = f"start no Spark: print how many requests wait and the earliest deadline, {codes}; default: answer them"
    step.add_argument("--check", action="store_true", help=check)
    step.add_argument("--json", action="store_true", help="of --check, the line and the run as JSON; default: the line")


def _add_publish(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "publish",
        "publish the committed scores to Redis, unless a newer day is there",
        "It writes the day's scores as a new epoch, which the online service looks texts up in, and makes it the one "
        "that answers in one step.",
        f"--ds {_DAY}",
    )
    add_record(step, "run record whose scores are published; default: the day's newest")
    force = "publish also when a newer day answers already, or when this epoch was rolled back; default: do not"
    step.add_argument("--force", action="store_true", help=force)
    # Its name in earlier versions.
    step.add_argument("--publish", action="store_true", dest="force", help=argparse.SUPPRESS)


def _add_rollback(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "rollback",
        "take the day's published scores back; the epoch before answers",
        "The committed scores stay in the table. The epoch is barred: only `publish --force` brings it back.",
        f"--ds {_DAY}",
    )
    # Without a use here; Airflow and scripts give it to every step.
    add_record(step, "accepted as in other steps, and not used: the epoch of the day and the release is taken back")
    step.add_argument("--release", default="", metavar="ID", help="release id; default: the active one")


def _add_report(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "report",
        "print the run; fail unless it is committed and its counts add up",
        "It prints what came of a run and writes report.html and report.json beside its record. It ends as the run "
        "did, and with 2 where lines in are not rows scored and lines quarantined.",
        f"--ds {_DAY}",
        _REFUSED,
        _STALE,
    )
    add_record(step, "run record to report; default: the day's newest")
    published = "fail also where `publish` has not run to its end; default: do not"
    step.add_argument("--published", action="store_true", help=published)
    facts = "print a few facts as one JSON object, and end as with --page; default: do not"
    step.add_argument("--facts", action="store_true", help=facts)
    page = "print the page, write nothing, and end with 0 whatever came of the run; default: do not"
    step.add_argument("--page", action="store_true", help=page)


def _add_read(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "read",
        "print committed scores, tab-separated",
        "The archive's rows come first, then those of deferred requests, in the order of their files. The table holds "
        "no texts: join the messages by id to see them.",
        f"--ds {_DAY} --label card_arrival --limit 5",
    )
    add_record(step, "accepted as in other steps, and not used: the committed scores of the day are read")
    step.add_argument("--label", default="", help="only rows of this label; default: rows of all labels")
    _add_printing(step, "rows", "every column, one JSON object a line; default: the main columns, tab-separated")


def _add_listings(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "runs",
        "list the runs, the newest first",
        "A line for each run record: day, run, status, rows scored, lines quarantined, when it was planned, its input, "
        "and the gates' verdict or the run's problem. Of many runs those are listed whose records changed last.",
        "--limit 5",
        day="only the runs of this day, YYYY-MM-DD; default: all days",
    )
    _add_printing(step, "runs", "one JSON object a run; default: a table")
    step = arguments.step(
        steps,
        "quarantine",
        "print the lines that the day's latest attempt quarantined",
        "Reason, file and beginning of each line, whether the attempt was committed or refused. "
        "TANDEM_QUARANTINE_SHARE is the share of a day's lines above which quarantining them refuses the day.",
        f"--ds {_DAY} --limit 5",
    )
    _add_printing(step, "lines", "one JSON object a line, its size in bytes included; default: tab-separated")


def _add_drift(steps: Steps) -> None:
    step = arguments.step(
        steps,
        "drift",
        "compare the labels, scores and lengths of committed days with a baseline",
        "It prints how far the distributions of each window have moved, by release, and writes drift.html and "
        "drift.json. TANDEM_DRIFT_BASELINE fixes the baseline; TANDEM_DRIFT_BOUND is the move with which it fails.",
        f"--to {_DAY} --days 7",
        "1 a distribution has moved beyond the bound",
        day=None,
    )
    step.add_argument("--to", default="", metavar="DAY", help="last day of the windows; default: the last committed")
    first = "first day of one window; default: see --days"
    step.add_argument("--from", default="", dest="first", metavar="DAY", help=first)
    days = "days of a window; may be given again; default: 7, and 30"
    step.add_argument("--days", action="append", type=arguments.positive, metavar="N", help=days)


def _add_printing(step: argparse.ArgumentParser, what: str, as_json: str) -> None:
    step.add_argument(
        "--limit", type=arguments.count, default=20, metavar="N", help=f"most {what} to print; default: 20; 0: all"
    )
    step.add_argument("--json", action="store_true", help=as_json)


if __name__ == "__main__":
    sys.exit(main())
