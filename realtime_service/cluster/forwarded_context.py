"""Metadata of a forwarded call: the routing decision of the first replica, which the second one does not repeat."""

from collections.abc import Iterable
from dataclasses import dataclass

from shared_model.errors import BadInput
from shared_model.types import ServingPath

#: Metadata of a forwarded call.
PATH, RELEASE, REASON = "x-tandem-path", "x-tandem-release", "x-tandem-reason"
#: Present where the published scores have been asked already.
LOOKED_UP = "x-tandem-looked-up"
#: Present where another worker of this service counts the work of the call.
COUNTED = "x-tandem-counted"

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class ForwardedContext:
    """The decision of the first replica. `release` is empty if no replica was known to serve the chosen one.
    `looked_up`: the published scores did not hold the texts; a router without lanes cannot look them up. `counted`:
    as in `cluster.worker_loads`."""

    path: ServingPath
    release: str
    reason: str
    looked_up: bool = True
    counted: bool = False

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Without the credentials by which the other replica believes it: see `PeerTrust`."""
        pairs = ((PATH, str(self.path)), (RELEASE, self.release), (REASON, self.reason))
        marks = [(mark, "1") for mark, said in ((LOOKED_UP, self.looked_up), (COUNTED, self.counted)) if said]
        return (*pairs, *marks)


def read(metadata: Metadata) -> ForwardedContext:
    """The context of a call that a replica forwarded. Raises: BadInput naming a field that is missing or wrong."""
    found = dict(metadata)
    values: list[str] = []
    for name in (PATH, RELEASE, REASON):
        value = found.get(name)
        if not isinstance(value, str):
            raise BadInput(name, "is missing in a forwarded call")
        values.append(value)
    path, release, reason = values
    if path not in list(ServingPath):
        raise BadInput(PATH, f"{path!r} is no lane")
    return ForwardedContext(ServingPath(path), release, reason, LOOKED_UP in found, COUNTED in found)
