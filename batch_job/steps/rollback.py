"""The `rollback` step: the epoch before that of a day answers online again. No JVM."""

import argparse

import redis

from batch_job import identity, lookup
from batch_job.identity import Tables
from batch_job.settings import NightlySettings
from batch_job.tables import fence, table
from shared_model import settings
from shared_model.objects import Location
from shared_model.published import epochs
from shared_model.published.epochs import RolledBack
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings


def run(args: argparse.Namespace, state: StateSettings) -> None:
    lookup.check_day(args.ds)
    nightly = settings.load(NightlySettings)
    with RedisServer(state) as server, fence.connect(server.url) as client:
        of = identity.configured_input(state)
        release = args.release or pointer.read(Store.from_settings(state), client, identity.model_of(of)).active
        done = roll_back(Tables.for_input(state, of).scores, nightly, client, release, args.ds, identity.model_of(of))
    live = f"epoch {done.now} is live again" if done.now else "no epoch before it is kept, so every text is computed"
    print(f"release {done.release}: epoch {done.was} is no longer live; {live}")


def roll_back(
    scores: Location, nightly: NightlySettings, client: "redis.Redis", release: str, ds: str, model: str = ""
) -> RolledBack:
    """Have the epoch before answer instead of that of day `ds`. Raises: JobError, StoreUnavailable."""
    latest = max(fence.latest_token(client, ds, model) or 0, table.last_attempt([scores], ds))
    return epochs.roll_back(client, release, ds, latest, nightly.publish_keep_seconds)
