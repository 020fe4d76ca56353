"""What travels with a call that one replica sends on to another: the decision, which is not made again."""

from collections.abc import Iterable
from dataclasses import dataclass

from shared_model.types import ServingPath

#: Metadata of a forwarded call.
WORD, PATH, RELEASE, REASON = "x-tandem-word", "x-tandem-path", "x-tandem-release", "x-tandem-reason"
#: Present where the published scores have been asked already.
LOOKED_UP = "x-tandem-looked-up"

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class ForwardedContext:
    """What the first hop decided. `release` is empty where it knew none that anybody serves. `looked_up`: the published
    scores hold nothing of it, as far as the first hop could know; a router without lanes cannot look."""

    path: ServingPath
    release: str
    reason: str
    looked_up: bool = True

    def metadata(self, word: str) -> tuple[tuple[str, str], ...]:
        """`word`: what replicas know each other by."""
        told = ((WORD, word), (PATH, str(self.path)), (RELEASE, self.release), (REASON, self.reason))
        return (*told, (LOOKED_UP, "1")) if self.looked_up else told


def arrived_by(metadata: Metadata, word: str) -> ForwardedContext | None:
    """The hop by which a call came; None for one that came from a caller.

    A caller who claims to be a replica without knowing the word is a caller: quotas would not hold otherwise.
    """
    told = dict(metadata)
    if not word or told.get(WORD) != word:
        return None
    return ForwardedContext(ServingPath(str(told[PATH])), str(told[RELEASE]), str(told[REASON]), LOOKED_UP in told)
