"""The ids of deferred requests that belong to a verified caller: two callers may use one id, and see their own.

Such a request is stored as OWNER/ID, OWNER percent-encoded, so that the first slash ends it. Other requests are stored
under their own ids.
"""

import urllib.parse

#: Every owner begins with this: an `Identity.key` of a verified caller.
_VERIFIED = "token:"


def owned(owner: str, request_id: str) -> str:
    """`owner`: like "token:alice"."""
    return f"{urllib.parse.quote(owner, safe=':@')}/{request_id}"


def is_owned(stored_id: str) -> bool:
    return stored_id.startswith(_VERIFIED) and "/" in stored_id


def request_id_of(stored_id: str) -> str:
    """The id as the caller has chosen it."""
    return stored_id.partition("/")[2] if is_owned(stored_id) else stored_id
