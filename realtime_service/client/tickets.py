"""The tickets of the work that a client has handed in: by them it asks for results."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from realtime_service.client.answers import Answer, Deferred
from realtime_service.client.arguments import several

#: Tickets that a client remembers: the last ones.
MAX_TICKETS = 100_000
NO_TICKETS: Mapping[str, str] = MappingProxyType({})

Reply = TypeVar("Reply")


class Tickets:
    """The tickets of the work that a client has handed in, the latest ones. Safe for threads."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, str] = OrderedDict()

    def __getitem__(self, request_id: str) -> str:
        """Empty where none is known."""
        return self._held.get(request_id, "")

    def kept(self, found: Reply) -> Reply:
        """Remember the ticket of a reply, if it has one. Returns the reply."""
        request_id, ticket = "", ""
        if isinstance(found, Answer):
            request_id, ticket = found.ticket, found.message.ticket.ticket
        elif isinstance(found, Deferred):
            request_id, ticket = found.request_id, found.ticket
        if ticket:
            self._held[request_id] = ticket
            if len(self._held) > MAX_TICKETS:
                self._held.popitem(last=False)
        return found

    def of(self, request_ids: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
        """The tickets of these requests, `given` ones first. Raises: InvalidRequest for what is no id."""
        ids = several("request_ids", request_ids)
        return {request_id: given.get(request_id) or self[request_id] for request_id in ids}
