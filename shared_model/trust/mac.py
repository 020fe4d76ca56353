"""HMAC-SHA256 with the cluster key: over stored messages, and as proofs that replicas send to each other.

A stored message carries its MAC as the last protobuf field, over all bytes before it, so that a reader of a former
version skips it.
"""

import hmac

from shared_model.errors import Untrusted

#: Field 15, of type bytes, with a length of 32.
_TAG = b"\x7a\x20"
_BYTES = 32
_SUFFIX = len(_TAG) + _BYTES

#: Seconds for which one proof is sent; a proof of the window before or after is accepted as well.
WINDOW_SECONDS = 30


def sealed(key: bytes, message: bytes) -> bytes:
    return message + _TAG + hmac.digest(key, message, "sha256")


def check(key: bytes, message: bytes, accept_unsigned: bool) -> None:
    """Raises: Untrusted for a message without a MAC, unless that is accepted, or with a wrong one."""
    if message[-_SUFFIX:-_BYTES] != _TAG:
        if not accept_unsigned:
            raise Untrusted("is unsigned")
    elif not hmac.compare_digest(hmac.digest(key, message[:-_SUFFIX], "sha256"), message[-_BYTES:]):
        raise Untrusted("has a wrong MAC")


def proof(key: bytes, address: str, now: float) -> str:
    """Shows to the replica at `address`, and to no other, that the sender has the key. `now`: UTC seconds."""
    return _proof(key, address, int(now // WINDOW_SECONDS))


def proves(key: bytes, address: str, now: float, sent: str) -> bool:
    """Whether a proof was made for this address, in this window or in a neighbour of it."""
    window, given = int(now // WINDOW_SECONDS), sent.encode()
    found = [hmac.compare_digest(_proof(key, address, window + by).encode(), given) for by in (-1, 0, 1)]
    return any(found)


def _proof(key: bytes, address: str, window: int) -> str:
    return hmac.digest(key, f"tandem peer\n{window}\n{address}".encode(), "sha256").hex()
