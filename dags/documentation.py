"""For each task its work and the remedy when it fails, as Airflow shows it beside the task."""

TASKS = {
    "plan": """
Looks at the day's messages and writes the run record, which pins input and release for the tasks after it. It waits for
messages that are not there, without a worker slot.

**When it fails** the ERROR line names the file, the column or the setting. Mend that and clear the task. *No messages*:
write the day, then clear the task.
""",
    "score": """
Scores the day in Spark and commits the scores if the gates pass. Nothing runs where the day is committed already. Where
a gate refuses the day, the scores are kept, and `judge` goes on.

**When it fails** at once, input or settings are wrong or a newer run owns the day (`stale`): its line says which. After
three tries, Spark was lost each time. Clear the task: finished shards are not scored again.
""",
    "judge": """
Says how the gates judged the day. It goes on to `publish` where the day is committed, and to `approve` where a person
may accept what was refused.

**When it fails** no person may accept the refusal: lines are missing, scores are not finite, or too many lines could
not be read. The report shows which. Mend the messages or the release, then clear `plan`.
""",
    "approve": """
Waits for one of the approvers, without a worker slot: see *Required actions*. It is skipped where no gate refused.

**When it fails** a person rejected the day, or no answer came in time: its line says which. The day before keeps
serving. To score the day again, clear `score`.
""",
    "commit": """
Commits the scores that a person accepted, in their name and without scoring again. It is skipped where no gate refused.

**When it fails** the line says what changed while the run waited: another run owns the day, the input is another, or
the release was revoked. Trigger a new run. After three tries, Redis or the store did not answer: clear the task.
""",
    "publish": """
Puts the day's scores into Redis, for the online service. A newer day that answers already stays.

**When it fails** after three tries, Redis did not answer: clear the task when it does. The scores are committed.
""",
    "report": """
Prints the run, also one that failed, writes its report page, and puts the run on the SLA board.

**When it fails** the run's figures do not add up, or the page could not be written: its line says which.
""",
    "complete": "Succeeds, and the run with it, when the scores are published and the figures add up.",
}

DRAIN_TASKS = {
    "check": """
Looks how many deferred requests wait that no lane is at, and says the earliest deadline. The run is skipped where none
waits.

**When it fails** after three tries, Redis or the store did not answer: its line says which. Nothing is lost; the next
run looks again.
""",
    "drain": """
Answers the requests in Spark, the earliest deadline first, commits the answers, and only then acknowledges them.

**When it fails** at once, input or settings are wrong: its line says which. After three tries, Redis, the store or
Spark was lost each time. Requests that were taken return when their lease is over; the next run takes them.
""",
}

DRIFT_TASKS = {
    "measure": """
Reads the columns of the committed scores that it compares, prints how far each distribution has moved, and writes the
page that its last line names.

**When it fails** at once, a distribution has moved beyond `TANDEM_DRIFT_BOUND`: look at the page, then at the messages.
If they have changed for good, set `TANDEM_DRIFT_BASELINE` to later days. Otherwise no day is committed, or a setting is
wrong: its line says which. After three tries, the store did not answer: clear the task.
""",
}

BACKFILL_TASKS = {
    "score": """
Plans, scores and commits each day of a range in one Spark application. Before each day it looks for a nightly run that
is due: that goes first, this task waits as *up for reschedule* without the device, and goes on with the days that are
left.

**When it fails** its log ends with a table of each day's verdict. A refused day stopped no other: look at its report,
then commit it by `batch_job commit`. Without a table, input, settings or the range are wrong, and its line says which.
After three tries, Redis, the store or Spark was lost each time. Clear the task: it goes on with the days that are left.
""",
}

RELEASE_TASKS = {
    "verify": """
Checks every file of the release by its hash, and its signature where one is asked for.

**When it fails** the release is not there or is damaged: its line names the file. Copy or build the release again.
""",
    "gate": """
Judges the release on this host, with texts of the generator: each variant against fp32. Callers notice nothing yet.

**When it fails** at once, the release was refused: `report.md` in its folder says why. `python -m shared_model gate`
with `--eval` judges it on your own texts.
""",
    "canary": """
Lets the release answer its share of the callers. Replicas load it within a minute.

**When it fails** at once, the release is the active one already, or its model has none yet: its line says which. After
three tries, Redis did not answer: clear the task when it does.
""",
    "watch": """
Compares the calls of the canary with those of the active release, and goes on to `promote` or to `roll_back`.

**When it fails** nothing was decided and the canary stays as it is: its line says why. Too few calls: clear the task to
watch for longer. After three tries, Redis did not answer: clear the task when it does.
""",
    "promote": """
Makes the canary the active release, and waits until all replicas follow. It is skipped where the canary was rolled
back.

**When it fails** its line names the replica that does not follow, or says that the release is no canary any more.
""",
    "roll_back": """
Drops the canary. It is skipped where the canary was promoted.

**When it fails** as it always does, the line says why the canary was rolled back. Look at the release; its callers have
the active one again. Where the line does not begin with *rolled back*, the canary is still there: clear the task.
""",
}

HOUSEKEEPING_TASKS = {
    "expire": """
Deletes old runs, quarantined lines and what is left of epochs, merges small files of the tables, prints how many, and
says which replicas serve the release that is active.

**When it fails** at once, a replica serves another release: its line names it; `shared_model list` says what is active.
Otherwise a setting or a file is wrong. After three tries, Redis or the store did not answer: clear the task.
""",
}
