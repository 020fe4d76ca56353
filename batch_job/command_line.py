"""python -m batch_job: the nightly run, step by step. Steps exchange one run record.

Exit codes: 0 done, 1 a gate refused the partition, 2 input, environment or settings are wrong, 3 a newer attempt owns
the partition, 4 (of plan) the messages are not there, 6 (of judge) a gate refused the partition and a person may accept
it, 7 (of score for many days) a nightly run goes first: call again, 70 an unexpected error: a traceback comes before
its line, 75 Redis or the store does not answer, or workers were killed: try again later.
"""

import argparse

from batch_job.arguments import DAY, Steps, add_accept, add_answer, add_printing, add_record, add_step, positive
from batch_job.launch import spark_submit
from batch_job.launch.spark_submit import WAIT_SECONDS

#: Exit codes of some steps.
_REFUSED, _STALE = "1 refused by a gate", "3 a newer attempt at the day has begun"
_NO_MESSAGES = f"{spark_submit.NO_INPUT} the messages are not there"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m batch_job", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    before = (_add_plan, _add_score, _add_judge, _add_commit, _add_reject)
    after = (
        _add_drain,
        _add_publish,
        _add_rollback,
        _add_report,
        _add_read,
        _add_listings,
        _add_drift,
        _add_housekeeping,
    )
    for add in (*before, *after):
        add(steps)
    return parser


def _add_plan(steps: Steps) -> None:
    step = add_step(
        steps,
        "plan",
        "pin the release, check and fingerprint the day's messages, write the run record",
        "It reads the schema of every file before any content, so that a missing column is named in seconds. "
        "TANDEM_INPUT_PATH and the settings beside it say where the messages are and what their columns are called.",
        f"--ds {DAY} --wait 0",
        _NO_MESSAGES,
    )
    add_record(step, "file to write the run record to; default: a new one in STATE/runs/DAY")
    wait = f"seconds to wait for messages that are not there; default: TANDEM_INPUT_WAIT_SECONDS, else {WAIT_SECONDS:g}"
    step.add_argument("--wait", metavar="SECONDS", help=wait)


def _add_score(steps: Steps) -> None:
    step = add_step(
        steps,
        "score",
        "score the day in Spark and commit the scores",
        "It scores a planned run, holds the result against the gates, and commits it in one transaction; then it "
        "answers deferred requests. A day that is committed already, from the same input with the same release, is not "
        "scored again. TANDEM_SPARK_MASTER names the cluster, local[*] unless set. With --from and --to it plans and "
        "scores many days in one Spark application, each with a record and a commit of its own, two at a time; it "
        "answers no deferred requests, and lets a nightly run go first.",
        f"--ds {DAY} --accept labels",
        _REFUSED,
        _STALE,
        _NO_MESSAGES,
        f"{spark_submit.YIELDED} of many days: a nightly run goes first, call again",
        day="the day, YYYY-MM-DD; default: --from and --to name many",
    )
    add_record(step, "run record to score; default: the day's newest")
    step.add_argument("--from", dest="first", default="", metavar="DAY", help="first of many days; default: --ds")
    step.add_argument("--to", dest="last", default="", metavar="DAY", help="last of many days; default: --ds")
    named = "name of these many days: a call of the same name goes on with them; default: the time"
    step.add_argument("--run", default="", metavar="NAME", help=named)
    publish = "of many days, publish the newest that is committed, at the end; default: do not"
    step.add_argument("--publish", action="store_true", help=publish)
    step.add_argument("--force", action="store_true", help="score again what is committed already; default: do not")
    add_accept(step)
    codes = f"end with 0 where the day is scored already, with 7 as without it, else with {spark_submit.CHANGED}"
    check = f"start no Spark: {codes}; default: score it"
    step.add_argument("--check", action="store_true", help=check)


def _add_judge(steps: Steps) -> None:
    step = add_step(
        steps,
        "judge",
        "say how the gates judged a run, and what a person is asked",
        "It prints the status of a committed run. Of a run that a gate refused and that a person may accept, it prints "
        "the figures and where the report is; `commit` or `reject` answers.",
        f"--ds {DAY}",
        _REFUSED,
        _STALE,
        f"{spark_submit.WAITING} a gate refused the day, and a person may accept it",
    )
    add_record(step, "run record to look at; default: the day's newest")
    step.add_argument("--json", action="store_true", help="the question as one JSON object; default: as text")


def _add_commit(steps: Steps) -> None:
    step = add_step(
        steps,
        "commit",
        "accept what a gate refused: commit the scores that wait, without scoring again",
        "A person has looked. The commit holds their name, the time and their comment. It fails if the day was "
        "attempted again meanwhile, its input changed or its release was revoked.",
        f"--ds {DAY} --accept labels --by ada --comment checked",
        _REFUSED,
        _STALE,
    )
    add_record(step, "run record whose scores wait; default: the day's newest")
    add_accept(step)
    add_answer(step)


def _add_reject(steps: Steps) -> None:
    step = add_step(
        steps,
        "reject",
        "turn down what a gate refused: the scores that wait are given up",
        "The day stays as it is, and may be scored again.",
        f"--ds {DAY} --by ada --comment duplicates",
    )
    add_record(step, "run record whose scores wait; default: the day's newest")
    add_answer(step)
    step.add_argument("--expired", action="store_true", help="no answer came in time; default: a person rejects")


def _add_drain(steps: Steps) -> None:
    step = add_step(
        steps,
        "drain",
        "answer deferred requests in Spark, without scoring a day",
        "It commits the answers beside a day's scores, which stay as they are. With a day, the release of its run "
        "answers; without one, the active release, and the answers go to the latest day that was planned. "
        "TANDEM_DEFERRED_DRAIN_LIMIT bounds how many.",
        f"--ds {DAY}",
        day="the day, YYYY-MM-DD; default: the latest that was planned",
    )
    add_record(step, "run record whose release answers; default: the day's newest")
    codes = f"end with 0 where nothing is to be answered, else with {spark_submit.CHANGED}"
    check = f"start no Spark: print how many requests wait and the earliest deadline, {codes}; default: answer them"
    step.add_argument("--check", action="store_true", help=check)
    step.add_argument("--json", action="store_true", help="of --check, the line and the run as JSON; default: the line")


def _add_publish(steps: Steps) -> None:
    step = add_step(
        steps,
        "publish",
        "publish the committed scores to Redis, unless a newer day is there",
        "It writes the day's scores as a new epoch, which the online service looks texts up in, and makes it the one "
        "that answers in one step.",
        f"--ds {DAY}",
    )
    add_record(step, "run record whose scores are published; default: the day's newest")
    force = "publish also when a newer day answers already, or when this epoch was rolled back; default: do not"
    step.add_argument("--force", action="store_true", help=force)
    # Its name in earlier versions.
    step.add_argument("--publish", action="store_true", dest="force", help=argparse.SUPPRESS)


def _add_rollback(steps: Steps) -> None:
    step = add_step(
        steps,
        "rollback",
        "take the day's published scores back; the epoch before answers",
        "The committed scores stay in the table. The epoch is barred: only `publish --force` brings it back.",
        f"--ds {DAY}",
    )
    # Without a use here; Airflow and scripts give it to every step.
    add_record(step, "accepted as in other steps, and not used: the epoch of the day and the release is taken back")
    step.add_argument("--release", default="", metavar="ID", help="release id; default: the active one")


def _add_report(steps: Steps) -> None:
    step = add_step(
        steps,
        "report",
        "print the run; fail unless it is committed and its counts add up",
        "It prints what came of a run and writes report.html and report.json beside its record. It ends as the run "
        "did, and with 2 where lines in are not rows scored and lines quarantined.",
        f"--ds {DAY}",
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
    picture = "print the plot of the labels as SVG, and end as with --page; default: do not"
    step.add_argument("--picture", action="store_true", help=picture)


def _add_read(steps: Steps) -> None:
    step = add_step(
        steps,
        "read",
        "print committed scores, tab-separated",
        "The archive's rows come first, then those of deferred requests, in the order of their files. The table holds "
        "no texts: join the messages by id to see them.",
        f"--ds {DAY} --label card_arrival --limit 5",
    )
    add_record(step, "accepted as in other steps, and not used: the committed scores of the day are read")
    step.add_argument("--label", default="", help="only rows of this label; default: rows of all labels")
    add_printing(step, "rows", "every column, one JSON object a line; default: the main columns, tab-separated")


def _add_listings(steps: Steps) -> None:
    step = add_step(
        steps,
        "runs",
        "list the runs, the newest first",
        "A line for each run record: day, run, status, rows scored, lines quarantined, when it was planned, its input, "
        "and the gates' verdict or the run's problem. Of many runs those are listed whose records changed last.",
        "--limit 5",
        day="only the runs of this day, YYYY-MM-DD; default: all days",
    )
    add_printing(step, "runs", "one JSON object a run; default: a table")
    step = add_step(
        steps,
        "quarantine",
        "print the lines that the day's latest attempt quarantined",
        "Reason, file and beginning of each line, whether the attempt was committed or refused. "
        "TANDEM_QUARANTINE_SHARE is the share of a day's lines above which quarantining them refuses the day.",
        f"--ds {DAY} --limit 5",
    )
    add_printing(step, "lines", "one JSON object a line, its size in bytes included; default: tab-separated")


def _add_drift(steps: Steps) -> None:
    step = add_step(
        steps,
        "drift",
        "compare the labels, scores and lengths of committed days with a baseline",
        "It prints how far the distributions of each window have moved, by release, and writes drift.html and "
        "drift.json. TANDEM_DRIFT_BASELINE fixes the baseline; TANDEM_DRIFT_BOUND is the move with which it fails.",
        f"--to {DAY} --days 7",
        "1 a distribution has moved beyond the bound",
        day=None,
    )
    step.add_argument("--to", default="", metavar="DAY", help="last day of the windows; default: the last committed")
    first = "first day of one window; default: see --days"
    step.add_argument("--from", default="", dest="first", metavar="DAY", help=first)
    days = "days of a window; may be given again; default: 7, and 30"
    step.add_argument("--days", action="append", type=positive, metavar="N", help=days)


def _add_housekeeping(steps: Steps) -> None:
    add_step(
        steps,
        "housekeeping",
        "let old runs, quarantined lines and epochs expire, and check that all paths serve one release",
        "TANDEM_KEEP_RUNS_DAYS and TANDEM_KEEP_QUARANTINE_DAYS say how old; runs whose scores wait for a person stay. "
        "Small files of days before the last three are merged, and files that nothing needs are deleted. "
        "Of published epochs it removes what a killed publisher and releases that were deleted have left.",
        "",
        "1 a replica does not serve the release that is active",
        day=None,
    )
