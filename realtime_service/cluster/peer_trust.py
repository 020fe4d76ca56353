"""The credentials by which replicas and routers know each other's calls.

With a cluster key each call carries a proof that is made for its target and for half a minute, so that the key is never
sent, and a proof is useless elsewhere and later. A peer stream carries it once, when it opens. Without a key, and among
replicas of a former version, a token that all of them read from Redis takes its place; it is never sent in clear to
another host.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.errors import ReplicaUnavailable
from shared_model.addresses import stays_here
from shared_model.clock import Clock
from shared_model.trust import mac
from shared_model.trust.keyring import CLUSTER, COMMAND, Keyring

#: Metadata: the token in Redis, and the proof that replaces it.
CLUSTER_TOKEN, PROOF = "x-tandem-word", "x-tandem-proof"

Credentials = tuple[tuple[str, str], ...]


def may_send(address: str, insecure: bool, tls: bool = False) -> bool:
    """Whether a secret may be sent to HOST:PORT as it is: over TLS, within this host, or where operators say so."""
    return insecure or tls or stays_here(address)


@dataclass(frozen=True)
class PeerTrust:
    """`address`: the one by which others call this replica; `cluster_token`: the last one read from Redis, or "";
    `insecure`: the token may be sent in clear."""

    keys: Keyring
    address: str
    cluster_token: Callable[[], str]
    clock: Clock
    insecure: bool = False

    @property
    def uses_token(self) -> bool:
        return not self.keys.cluster or self.keys.accept_unsigned

    def credentials(self, address: str, tls: bool = False) -> Credentials:
        """Of a unary call to a replica, and of a peer stream that opens. `tls`: of the connection to it.

        Raises: ReplicaUnavailable without any.
        """
        token = self.token(address, tls)
        if self.keys.cluster:
            return ((PROOF, mac.proof(self.keys.cluster, address, self.clock.wall())), *token)
        if not token:
            raise ReplicaUnavailable(
                f"calls are not forwarded to {address}: it is another host, and this service has no {CLUSTER}; make "
                f"one with `{COMMAND}`, or set TANDEM_INSECURE=yes to send the cluster's token in clear"
            )
        return token

    def token(self, address: str, tls: bool = False) -> Credentials:
        """Of each call on a peer stream: a replica of a former version does not look at the stream's own."""
        token = self.cluster_token() if self.uses_token else ""
        return ((CLUSTER_TOKEN, token),) if token and may_send(address, self.insecure, tls) else ()

    def verifies(self, metadata: Metadata) -> bool:
        """Whether a replica or a router sent this. All else is a caller's, whatever it claims, so that quotas hold."""
        key, token = self.keys.cluster, self.cluster_token() if self.uses_token else ""
        for name, value in metadata:
            if name == PROOF and key and mac.proves(key, self.address, self.clock.wall(), str(value)):
                return True
            if name == CLUSTER_TOKEN and token and hmac.compare_digest(str(value).encode(), token.encode()):
                return True
        return False
