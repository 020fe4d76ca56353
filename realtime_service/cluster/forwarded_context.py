"""Metadata of a forwarded call: the routing decision of the first replica, which the second one does not repeat."""

from collections.abc import Iterable
from dataclasses import dataclass

from shared_model.errors import BadInput
from shared_model.types import ServingPath

#: Metadata of a forwarded call.
CLUSTER_TOKEN, PATH, RELEASE, REASON = "x-tandem-word", "x-tandem-path", "x-tandem-release", "x-tandem-reason"
#: Present where the published scores have been asked already.
LOOKED_UP = "x-tandem-looked-up"

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class ForwardedContext:
    """The decision of the first replica. `release` is empty if no replica was known to serve the chosen one.
    `looked_up`: the published scores did not hold the texts; a router without lanes cannot look them up."""

    path: ServingPath
    release: str
    reason: str
    looked_up: bool = True

    def metadata(self, cluster_token: str) -> tuple[tuple[str, str], ...]:
        """`cluster_token`: the secret by which replicas know each other."""
        pairs = ((CLUSTER_TOKEN, cluster_token), (PATH, str(self.path)), (RELEASE, self.release), (REASON, self.reason))
        return (*pairs, (LOOKED_UP, "1")) if self.looked_up else pairs


def arrived_by(metadata: Metadata, cluster_token: str) -> ForwardedContext | None:
    """The context of a call that a replica forwarded; None for a call of a caller.

    A call without the cluster token is a caller's, whatever else it claims, so that quotas hold for it. Raises:
    BadInput.
    """
    found = dict(metadata)
    if not cluster_token or found.get(CLUSTER_TOKEN) != cluster_token:
        return None
    try:
        path, release, reason = (str(found[name]) for name in (PATH, RELEASE, REASON))
        return ForwardedContext(ServingPath(path), release, reason, LOOKED_UP in found)
    except (KeyError, ValueError) as error:
        raise BadInput(PATH, f"a forwarded call lacks its decision, or has a wrong one: {error}") from error
