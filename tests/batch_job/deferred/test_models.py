"""Deferred requests of several models: each is answered by a release of the model that it names."""

from dataclasses import replace

import redis.asyncio

from batch_job.deferred.draining import drain
from batch_job.deferred.scores import DeferredScores
from batch_job.scoring.options import ScoringOptions
from batch_job.steps.drain import releases_of
from shared_model.deferred import DeferredQueue, State
from shared_model.releases.pointer import Pointer
from shared_model.releases.pointers import Pointers
from shared_model.releases.store import Release
from tests.batch_job.deferred.deferring import Spark, submit

MAIN, MAIN_2, SIDE = "main-aaaaaaaaaaaa", "main-bbbbbbbbbbbb", "side-aaaaaaaaaaaa"


async def test_a_request_is_answered_by_a_release_of_its_model(
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    release: Release,
    faked: Spark,
) -> None:
    """The release of the run is not here: only a request that names no model needs it."""
    side, gone = await submit(deferred, "where is my card", model="side"), await submit(deferred, "help", model="gone")
    default = await submit(deferred, "help")
    run = replace(options, release=MAIN)
    assert await drain(None, deferred, run, scores, limit=10, actives={"side": release.id}) == 3  # type: ignore[arg-type]
    found = {it: await DeferredQueue(deferred).get(it) for it in (side, gone, default)}
    by_side, by_none, by_run = (found[it] for it in (side, gone, default))
    assert by_side is not None
    assert by_side.response is not None
    assert by_none is not None
    assert by_run is not None
    assert (by_side.response.release, by_side.response.model) == (release.id, release.manifest.name)
    assert (by_none.state, by_none.failure) == (State.FAILED, "model: 'gone' has no active release")
    assert (by_run.state, by_run.failure.partition(" is ")[0]) == (State.FAILED, f"release {MAIN}")


def test_a_run_keeps_its_planned_release_for_its_own_model_alone() -> None:
    found = Pointers(Pointer(2, MAIN_2, MAIN), {"side": Pointer(1, SIDE)})
    assert releases_of(found, MAIN) == {"": MAIN, "main": MAIN, "side": SIDE}
    # A night of another model does not answer for the default one.
    assert releases_of(found, "side-bbbbbbbbbbbb") == {"": MAIN_2, "main": MAIN_2, "side": "side-bbbbbbbbbbbb"}
    # Nothing was ever promoted: a release that was named by hand.
    assert releases_of(Pointers(None), MAIN)[""] == MAIN
