"""The `report` step: a run on standard output and as a page, with the exit code that it ended with; or the page."""

import argparse
import json
import sys

from batch_job import lookup, reporting
from batch_job.identity import Tables
from batch_job.progress import log
from batch_job.reporting import lineage, plain_text
from batch_job.run_record import RunRecord, State
from batch_job.settings import NightlySettings
from batch_job.steps import figures
from batch_job.tables.fence import connect
from shared_model import settings
from shared_model.errors import JobError, Refused, Stale, StoreUnavailable
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings


def run(args: argparse.Namespace, state: StateSettings) -> None:
    path = lookup.find(args.record, args.ds, state)
    done = lookup.open_for(path, args.ds)
    if args.facts:
        scores = Tables.for_input(state, done.input.identity).scores
        print(json.dumps({**plain_text.facts(done), "lineage": lineage.document(done, scores)}))
        return
    if args.page or args.picture:
        _print_page(done, args.picture)
        return
    print(plain_text.summary(done))
    if later := lookup.latest_refusal(state, done.ds, done.input.identity, besides=done.run_id):
        print(f"  latest      {later}")
    _tell(state, done)
    nightly = settings.load(NightlySettings)
    written = reporting.write(path, done, nightly.price_per_hour, nightly.price_currency, state.releases_root)
    print("\n".join(f"  report      {file}" for file in written))
    check(done, args.published)


def _tell(state: StateSettings, run: RunRecord) -> None:
    """A night that failed or was refused is on the SLA board, too."""
    try:
        with RedisServer(state) as server, connect(server.url) as client:
            figures.tell_state(client, run)
    except StoreUnavailable as error:
        log(f"run {run.run_id} of ds={run.ds} is not on the SLA board: {error}")


def _print_page(run: RunRecord, picture_alone: bool) -> None:
    """The page as it is now, without links: its reader may see it at another address than that of its file. Raises:
    JobError where the picture alone is asked for and the run counted no labels."""
    # Jinja2 and pygal: the other steps do without them.
    from batch_job.reporting import page, picture

    nightly = settings.load(NightlySettings)
    printed = picture.labels(run) if picture_alone else page.html(run, nightly.price_per_hour, nightly.price_currency)
    if not printed:
        raise JobError(f"run {run.run_id} of ds={run.ds} has counted no labels: there is nothing to draw")
    # In UTF-8, which the page declares, whatever the encoding of the terminal is.
    sys.stdout.buffer.write(printed.encode())


def check(run: RunRecord, published: bool = False) -> None:
    """Raises: Refused, Stale or JobError where the run committed nothing; JobError where its counts do not add up.
    `published`: publishing was asked for too; JobError where no step has decided on it."""
    named = f"run {run.run_id} of ds={run.ds}"
    match run.state:
        case State.PLANNED:
            raise JobError(f"{named} was planned and not scored; run `python -m batch_job score --ds {run.ds}`")
        case State.REFUSED:
            raise Refused(f"{named}: {run.problem.removeprefix(f'ds={run.ds}: ')}")
        case State.STALE:
            raise Stale(f"{named}: {run.problem}")
        case State.FAILED:
            raise JobError(f"{named} failed and committed nothing: {run.problem}")
    quarantined = sum(run.scoring.quarantined.values()) if run.scoring else 0
    if run.scoring and run.scoring.rows + quarantined != run.input.lines:
        raise JobError(
            f"ds={run.ds}: {run.input.lines} lines in, but {run.scoring.rows} scored and {quarantined} quarantined; "
            "score the day again with --force"
        )
    if published and run.publication is None:
        publish = f"python -m batch_job publish --ds {run.ds}"
        raise JobError(f"{named} is {plain_text.status(run)}: `publish` did not end; `{publish}` goes on")
