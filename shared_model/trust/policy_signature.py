"""The operator's signature of the routing policy: its last protobuf field, over all bytes before it."""

from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import OperatorSignature, RoutingPolicy
from shared_model.errors import Untrusted
from shared_model.trust import high_water
from shared_model.trust.keyring import Keyring, Signature

#: Field 15, a message of a fixed length: a version of 9 bytes, a key of 34 and a signature of 66.
_TAG = b"\x7a\x6d"
_SUFFIX = len(_TAG) + 9 + 34 + 66


def signed(policy: RoutingPolicy, keys: Keyring) -> bytes:
    """The stored form of a policy. Raises: SettingError where signatures are enforced and this machine has no key."""
    policy.ClearField("signature")
    body = policy.SerializeToString()
    signature = keys.sign(_statement(body))
    if signature is None:
        return body
    added = OperatorSignature(version=policy.version, signer=signature.signer, value=signature.value)
    return body + RoutingPolicy(signature=added).SerializeToString()


def check(stored: bytes, keys: Keyring) -> None:
    """Raises: Untrusted for a policy that no operator signed, a damaged one, or one that was replaced since."""
    if not keys.operators:
        return
    try:
        policy = RoutingPolicy.FromString(stored)
    except DecodeError as error:
        raise Untrusted("is damaged") from error
    found = policy.signature
    # A former version that changes a policy keeps the signature of the one before.
    if not policy.HasField("signature") or found.version != policy.version:
        keys.check(b"", None)
    elif stored[-_SUFFIX : -_SUFFIX + len(_TAG)] != _TAG:
        raise Untrusted("has fields after its signature")
    else:
        keys.check(_statement(stored[:-_SUFFIX]), Signature(found.signer, found.value))
        keys.accepted.check(high_water.POLICY, policy.version)
        keys.accepted.raise_to(high_water.POLICY, policy.version)


def _statement(body: bytes) -> bytes:
    return b"tandem policy\n" + body
