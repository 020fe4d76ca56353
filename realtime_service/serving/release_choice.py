"""Chooses the release that answers a request, here or elsewhere: one of the model that it names."""

from realtime_service.errors import ModelLoading, PermissionDenied, ReplicaUnavailable
from realtime_service.identity import Identity
from realtime_service.models.registry import Models, unknown
from realtime_service.routing.snapshot import any_release
from realtime_service.serving.request import RequestContext
from shared_model.errors import TandemError


def choose(models: Models, context: RequestContext) -> str:
    """The release, or `any_release` of its model where no replica is known to have it. Notes the model in the context,
    and that it was used. Raises: UnknownRelease, BadInput, PermissionDenied."""
    serving, request, forwarded = models.serving, context.request, context.call.forwarded
    caller, pinned = context.call.caller, context.request.release
    roles, other = serving.roles(request.model), serving.other(request.model)
    context.name_model(serving)
    if other:
        models.used[other] = context.arrived
    # A router of a former version does not read the model.
    if forwarded and forwarded.release in serving.models and serving.answers(forwarded.release, request.model):
        check_permitted(caller, forwarded.release)
        return forwarded.release
    chosen = serving.choose(pinned, caller.key, request.model)
    if not pinned and not caller.may_ask_release(chosen):
        # Of another model than the active release.
        chosen = roles.active
    check_permitted(caller, chosen)
    if chosen in serving.models or context.snapshot.serves(chosen):
        return chosen
    if pinned:
        raise unknown(pinned, roles.active)
    return any_release(other)


def unloaded(models: Models, name: str) -> TandemError:
    """The refusal of a request whose release is not loaded here. `name`: of its model."""
    if name in models.loads:
        return ModelLoading(name)
    return ReplicaUnavailable("this replica no longer has the release it was asked for; ask another")


def check_permitted(caller: Identity, release: str) -> None:
    """`release`: may be empty, where another replica chooses. Raises: PermissionDenied."""
    if release and not caller.may_ask_release(release):
        raise PermissionDenied(f"release: the token does not permit the model of {release!r}")
