"""The `plan` step: pin the release, wait for the input, check and fingerprint it. No JVM, no model."""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

import redis

from batch_job import identity, lookup, run_record
from batch_job.identity import Tables
from batch_job.inputs import ids
from batch_job.inputs.source import Source
from batch_job.launch import spark_submit
from batch_job.progress import log
from batch_job.reporting import plain_text
from batch_job.run_record import RunRecord, Runtime
from batch_job.settings import InputSettings
from batch_job.tables.fence import connect
from shared_model import settings
from shared_model.errors import JobError, NoInput
from shared_model.objects import located
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer, pointers
from shared_model.releases.store import Store
from shared_model.settings import StateSettings

T = TypeVar("T")


@dataclass(frozen=True)
class InputWait:
    """How long to wait for messages that are not there, and how often to look, in seconds. 0: not at all."""

    seconds: float = 0.0
    every: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def wait(self, look: Callable[[], T]) -> T:
        """What `look` gives once it no longer raises NoInput. Raises: NoInput, its own, when time is up."""
        until = self.clock() + self.seconds
        logged = False
        while True:
            try:
                return look()
            except NoInput as error:
                left = until - self.clock()
                if left <= 0:
                    raise
                if not logged:
                    log(f"{error}. Waiting up to {self.seconds:g} s for them, looking every {self.every:g} s")
                    logged = True
                self.sleep(min(self.every, left))


def run(args: argparse.Namespace, state: StateSettings) -> None:
    lookup.check_day(args.ds)
    path = args.record or located(spark_submit.record_path(args.ds, f"manual-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"))
    inputs = settings.load(InputSettings, input_wait_seconds=args.wait)
    wait = InputWait(inputs.input_wait_seconds, inputs.input_poll_seconds)
    with RedisServer(state) as server, connect(server.url) as client:
        planned = plan_run(state, client, args.ds, lookup.run_id(path), inputs, wait)
    of = planned.input.identity
    refusal = lookup.latest_refusal(state, planned.ds, of)
    run_record.write(path, planned)
    print(f"ds={planned.ds}: {plain_text.source(planned.input)}, release {planned.release}")
    print(f"input {identity.describe(state, of)}; its scores: {Tables.for_input(state, of).scores}")
    if refusal:
        print(refusal)
    if note := ids.note(planned.input):
        print(note)
    print(f"record {path}")


def plan_run(
    state: StateSettings,
    client: "redis.Redis | None",
    ds: str,
    run_id: str,
    inputs: InputSettings | None = None,
    wait: InputWait = InputWait(),
    release_id: str = "",
) -> RunRecord:
    """Everything the later steps must agree on, decided once. `release_id`: default the active release's.

    Raises: NoInput when the day's messages did not come in time; JobError, ReleaseError.
    """
    lookup.check_day(ds)
    inputs = inputs or InputSettings()
    source = Source.from_settings(state, inputs)
    messages = wait.wait(lambda: source.read(ds))
    store = Store.from_settings(state)
    release = store.open(release_id or active_release(store, client, inputs.nightly_model))
    pairs = release.manifest.reads.pairs
    if pairs and not inputs.input_pair:
        raise JobError(
            f"release {release.id} reads pairs of texts; rows of the input hold one: say by TANDEM_INPUT_PAIR which "
            "column holds the other, or promote another release"
        )
    if inputs.input_pair and not pairs:
        raise JobError(f"release {release.id} reads single texts, and TANDEM_INPUT_PAIR is set")
    return RunRecord(
        ds=ds,
        run_id=run_id,
        planned_at=datetime.now(UTC).isoformat(timespec="seconds"),
        release=release.id,
        runtime=this_runtime(),
        input=replace(messages, identity=identity.input_name(state, inputs)),
    )


def this_runtime() -> Runtime:
    return Runtime(sys.prefix, f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}")


def active_release(store: Store, client: "redis.Redis | None", model: str) -> str:
    """The active release of a model, "" for the default one. Raises: JobError for the default model by its name, whose
    table would be another one; ReleaseError."""
    default = pointer.read(store, client).active
    if model and model == pointers.name_of(default):
        raise JobError(f"model {model} is the default one, whose tables have no name: leave TANDEM_NIGHTLY_MODEL out")
    return pointer.read(store, client, model).active if model else default
