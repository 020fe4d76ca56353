"""Credentials of replicas in tests."""

from realtime_service.cluster.peer_trust import PeerTrust
from shared_model.clock import SystemClock
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring

CLUSTER_TOKEN = "open sesame"  # noqa: S105


def trusting(address: str = "", keys: Keyring = WITHOUT_KEYS) -> PeerTrust:
    """Of a replica at this address: with the cluster's token where it has no key."""
    return PeerTrust(keys, address, lambda: CLUSTER_TOKEN, SystemClock())
