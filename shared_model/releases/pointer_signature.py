"""The operator's signature of a release pointer: two fields beside those that it covers, `signer` and `signature`.

That of another model's pointer than the default's also covers the model.

The signature begins with the version that it covers. A promotion by a former version of Tandem leaves the signature of
the pointer before it: such a pointer counts as unsigned.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from shared_model.trust import high_water
from shared_model.trust.keyring import Keyring, Signature, encoded


def signed(fields: Mapping[str, Any], keys: Keyring, model: str = "") -> dict[str, Any]:
    """The fields of a pointer with a signature, where there is a key. Raises: SettingError: see `Keyring.sign`."""
    signature = keys.sign(_statement(fields, model))
    if signature is None:
        return dict(fields)
    written = f"{fields['version']} {encoded(signature.value)}"
    return {**fields, "signer": encoded(signature.signer), "signature": written}


def found(fields: Mapping[str, Any], document: Mapping[str, Any]) -> Signature | None:
    """The signature beside these fields, unverified. Raises: ValueError if it is malformed."""
    version, _, value = str(document.get("signature", "")).partition(" ")
    if version != str(fields["version"]):
        return None
    signer = base64.b64decode(str(document.get("signer", "")), validate=True)
    return Signature(signer, base64.b64decode(value, validate=True))


def check(
    fields: Mapping[str, Any], document: Mapping[str, Any], keys: Keyring, replayable: bool, model: str = ""
) -> None:
    """`replayable`: whether others than operators may have put back a former version.

    Raises: Untrusted; ValueError if the signature is malformed.
    """
    signature = found(fields, document)
    keys.check(_statement(fields, model), signature)
    if keys.operators and signature:
        subject = high_water.pointer_of(model)
        if replayable:
            keys.accepted.check(subject, fields["version"])
        keys.accepted.raise_to(subject, fields["version"])


def proves(fields: Mapping[str, Any], signature: Signature, model: str = "") -> bool:
    """Whether the owner of the key that is named, trusted or not, signed these fields."""
    return Keyring(operators=(signature.signer,)).accepts(_statement(fields, model), signature)


def _statement(fields: Mapping[str, Any], model: str) -> bytes:
    covered = {**fields, "model": model} if model else fields
    return b"tandem pointer\n" + json.dumps(covered, sort_keys=True).encode()
