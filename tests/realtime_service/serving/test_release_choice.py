"""The release of a request that another replica forwarded, and the quota and share that it counts by."""

from typing import Any, cast

import pytest

from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.errors import ModelLoading, PermissionDenied, ReplicaUnavailable
from realtime_service.identity import Identity
from realtime_service.models.registry import Model, Models, Roles, Serving
from realtime_service.routing.snapshot import ANY_RELEASE, Snapshot, any_release
from realtime_service.serving import release_choice
from realtime_service.serving.request import CallContext, RequestContext, ScoringRequest
from shared_model.types import Priority, ServingPath

MAIN, SIDE = "main-aaaaaaaaaaaa", "side-aaaaaaaaaaaa"


def served(*loaded: str) -> Models:
    models = {it: Model(it, *cast(Any, (None, None, {}))) for it in loaded}
    return Models(Serving(models, MAIN, others={"side": Roles(SIDE)}))


def context(model: str, forwarded: str | None = None, caller: Identity = Identity("key", "addr:x")) -> RequestContext:  # noqa: B008
    """`forwarded`: the release that the other replica has chosen."""
    request = ScoringRequest(("card",), (), Priority.UNSPECIFIED, None, 3, "", "", model=model)
    sent = None if forwarded is None else ForwardedContext(ServingPath.DYNAMIC, forwarded, "")
    return RequestContext(request, CallContext(caller, None, "/any", b"", forwarded=sent), Snapshot("here"), 7.0, None)


@pytest.mark.parametrize(
    ("model", "forwarded", "chosen"),
    [
        ("", MAIN, MAIN),
        ("side", SIDE, SIDE),
        # A router of a former version does not read the model, and chooses a release of the default one.
        ("side", MAIN, SIDE),
        ("side", any_release("side"), SIDE),
        ("", ANY_RELEASE, MAIN),
        ("side", None, SIDE),
        ("main", None, MAIN),
    ],
)
def test_a_forwarded_request_is_answered_by_the_model_that_it_names(
    model: str, forwarded: str | None, chosen: str
) -> None:
    assert release_choice.choose(served(MAIN, SIDE), context(model, forwarded)) == chosen


def test_a_model_that_is_not_loaded_here_is_looked_for_where_it_is_served() -> None:
    models = served(MAIN)
    assert release_choice.choose(models, context("side")) == any_release("side")
    assert models.used == {"side": 7.0}
    assert isinstance(release_choice.unloaded(models, "side"), ReplicaUnavailable)
    models.loads = frozenset({"side"})
    assert isinstance(release_choice.unloaded(models, "side"), ModelLoading)


def test_a_token_without_the_model_may_not_ask_it() -> None:
    caller = Identity("token:a", "token:a", models=frozenset({"main"}))
    assert release_choice.choose(served(MAIN, SIDE), context("", caller=caller)) == MAIN
    with pytest.raises(PermissionDenied, match="does not permit the model of 'side-"):
        release_choice.choose(served(MAIN, SIDE), context("side", caller=caller))


def test_a_caller_has_a_share_of_each_model() -> None:
    asked = [context(model) for model in ("", "main", "side")]
    for it in asked:
        release_choice.choose(served(MAIN, SIDE), it)
    assert [(it.name, it.flow) for it in asked] == [
        ("main", "addr:x"),
        ("main", "addr:x"),
        ("side", "model:side/addr:x"),
    ]
