"""The audit of operators' commands: who changed what, when, and from what to what.

Each record is signed by the operator's key where there is one, and is written by the script that makes the change. The
streams keep about the last 10,000 records of each subject.
"""

import base64
import getpass
import json
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import redis

from shared_model.redis_store import keys as redis_keys
from shared_model.trust import ed25519
from shared_model.trust.keyring import Keyring, encoded

MAX_RECORDS = 10_000

log = logging.getLogger("tandem.audit")


@dataclass(frozen=True)
class Record:
    """`at`: UTC, ISO 8601. `by`: user and host as they call themselves; only a signature proves the key."""

    at: str
    by: str
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.at}  {self.what}  by {self.by}: {self.before or 'nothing'} -> {self.after or 'nothing'}"


def arguments(keys: Keyring, what: str, before: str, after: str) -> list[str]:
    """ARGV of a script that appends a record: the record, its signer and its signature, both empty without a key, and
    the number of records to keep. Also logs the record.

    Raises: SettingError where operators sign and no operator's key is here: the script must not run then. BadInput for
    a damaged key.
    """
    record = Record(datetime.now(UTC).isoformat(timespec="seconds"), _author(), what, before, after)
    written = json.dumps(asdict(record), sort_keys=True)
    signature = keys.sign(_statement(written))
    signer = f", key {ed25519.key_id(signature.signer)}" if signature else ""
    # A warning: commands do not configure logging, and their standard error shows warnings.
    log.warning("audit: %s%s", record, signer)
    return [
        written,
        *((encoded(signature.signer), encoded(signature.value)) if signature else ("", "")),
        str(MAX_RECORDS),
    ]


def lines(client: "redis.Redis", keys: Keyring) -> Iterator[str]:
    """All records, oldest first, each with its signer. Raises: redis.RedisError."""
    found = [it for subject in redis_keys.AUDITED for it in client.xrange(redis_keys.audit(subject))]
    for _, fields in sorted(found, key=lambda it: tuple(map(int, it[0].split(b"-")))):
        yield f"{_shown(fields[b'record'])}  [{_verdict(fields, keys)}]"


def _shown(written: bytes) -> str:
    """A record for people; a writer of Redis may have stored anything."""
    try:
        return repr(str(Record(**json.loads(written))))[1:-1]
    except (ValueError, TypeError):
        return repr(written[:200])


def _verdict(fields: dict[bytes, bytes], keys: Keyring) -> str:
    signer = fields.get(b"signer", b"")
    if not signer:
        return "unsigned"
    try:
        public, value = (base64.b64decode(fields[name], validate=True) for name in (b"signer", b"signature"))
    except (ValueError, KeyError):
        return "DAMAGED SIGNATURE"
    if not ed25519.verifies(_statement(fields[b"record"].decode(errors="replace")), public, value):
        return "WRONG SIGNATURE"
    unknown = "" if public in keys.operators else ", a key that is not in operators.pub"
    return f"signed by {ed25519.key_id(public)}{unknown}"


def _author() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _statement(written: str) -> bytes:
    return b"tandem audit\n" + written.encode()
