"""The connections to the other replicas: one to each address, opened before the first call."""

from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.cluster.peer_stream import PeerStream
from realtime_service.cluster.peer_trust import PeerTrust
from realtime_service.rpc.credentials import ChannelTls
from realtime_service.rpc.keepalive import REPLICA_PING_MS, Options, watchful
from shared_model.addresses import stays_here
from shared_model.tls import CertificateFiles, TlsSettings

#: A larger request is a unary call of its own: on the stream it would delay those behind it.
STREAM_BYTES = 64 * 1024

#: gRPC options of a channel to another replica.
_OPTIONS: Options = (
    *watchful(REPLICA_PING_MS, longest_pause_ms=500),
    # Detects a replica that hangs also while no call is under way.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A stopped process still accepts connections but never answers on them; gRPC would wait twenty seconds by default.
    ("grpc.min_reconnect_backoff_ms", 500),
    # The forwarder decides on retries.
    ("grpc.enable_retries", 0),
    # The size of the request bounds that of the answer.
    ("grpc.max_receive_message_length", -1),
)


class Peer:
    """The connection to one replica, with TLS where `tls` says how."""

    def __init__(self, address: str, trust: PeerTrust, tls: ChannelTls | None = None) -> None:
        self.tls = tls
        self._address = address
        self._trust = trust
        self._secured = tls is not None
        # Its type stubs require arguments that it does not need.
        self._channel: Any = (
            grpc.aio.secure_channel(address, tls.credentials(), options=(*_OPTIONS, *tls.options))
            if tls
            else grpc.aio.insecure_channel(address, options=_OPTIONS)
        )
        self._stream: PeerStream | None = None
        self._met = False
        self._missed = False
        self._calls = 0

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return self._calls > 0

    @property
    def reachable(self) -> bool | None:
        """None while a connection is being made: the first one, or another for one that the replica has closed because
        of its age. Reading this property starts a connection; made by the next look, it is in time."""
        state = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            self._met, self._missed = True, False
            return True
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE or self._missed:
            return False
        self._missed = self._met
        return None

    async def call(self, method: str, raw: bytes, seconds: float | None, metadata: Metadata) -> bytes:
        """`seconds`: how long the call may take. Raises: grpc.aio.AioRpcError; ReplicaUnavailable where no credentials
        may be sent."""
        self._calls += 1
        try:
            if len(raw) <= STREAM_BYTES:
                if self._stream is None or not self._stream.open:
                    self._stream = PeerStream(self._channel, self._trust.credentials(self._address, self._secured))
                token = self._trust.token(self._address, self._secured)
                return await self._stream.call(method, raw, seconds, (*token, *metadata))
            sent = (*self._trust.credentials(self._address, self._secured), *metadata)
            answer: bytes = await self._channel.unary_unary(method)(raw, timeout=seconds, metadata=sent)
            return answer
        finally:
            self._calls -= 1

    async def close(self) -> None:
        await self._channel.close()


class PeerTls:
    """How the channels to other replicas are secured, from settings and the files that they name."""

    def __init__(self, settings: TlsSettings, files: CertificateFiles) -> None:
        self._settings = settings
        self._files = files
        self._read = files.current()
        self._tls = self._channel_tls()

    def of(self, address: str, has_tls: bool) -> ChannelTls | None:
        """None for a plain channel. `has_tls`: the replica there says so. A replica with TLS calls no other one beyond
        this host without it, whatever a heartbeat says, unless TANDEM_INSECURE allows that."""
        settings = self._settings
        if not has_tls and (settings.insecure or not settings.serves or stays_here(address)):
            return None
        if (read := self._files.current()) is not self._read:
            self._read = read
            self._tls = self._channel_tls()
        return self._tls

    def _channel_tls(self) -> ChannelTls:
        read = self._read
        return ChannelTls(read.ca, read.cert, read.key, self._settings.tls_name)


class Peers:
    """`tls`: None: no replica is called with TLS."""

    def __init__(self, trust: PeerTrust, tls: PeerTls | None = None) -> None:
        self._trust = trust
        self._tls = tls
        self._peers: dict[str, Peer] = {}
        #: With renewed certificates: each takes the place of the former one once it is connected.
        self._successors: dict[str, Peer] = {}
        #: Out of use, except for calls under way.
        self._left: list[Peer] = []

    def at(self, address: str, has_tls: bool = False) -> Peer:
        if address not in self._peers:
            self._peers[address] = Peer(address, self._trust, self._wanted(address, has_tls))
        return self._peers[address]

    async def follow(self, replicas: Mapping[str, bool]) -> None:
        """Connect to these addresses, and disconnect from others once no call is under way there. By address: whether
        the replica has TLS."""
        for address, has_tls in replicas.items():
            self._renew(address, self.at(address, has_tls), self._wanted(address, has_tls))
        for known in (self._peers, self._successors):
            self._left += [known.pop(it) for it in known.keys() - replicas.keys() if not known[it].busy]
        unused = [peer for peer in self._left if not peer.busy]
        self._left = [peer for peer in self._left if peer.busy]
        for peer in unused:
            await peer.close()

    async def close(self) -> None:
        """Calls under way are cancelled."""
        peers = [*self._peers.values(), *self._successors.values(), *self._left]
        self._peers, self._successors, self._left = {}, {}, []
        for peer in peers:
            await peer.close()

    def _wanted(self, address: str, has_tls: bool) -> ChannelTls | None:
        return self._tls.of(address, has_tls) if self._tls else None

    def _renew(self, address: str, peer: Peer, wanted: ChannelTls | None) -> None:
        """A former peer that cannot connect any more is replaced without waiting."""
        if peer.tls == wanted:
            return
        successor = self._successors.pop(address, None)
        if successor and successor.tls != wanted:
            self._left.append(successor)
            successor = None
        successor = successor or Peer(address, self._trust, wanted)
        if successor.reachable or peer.reachable is False:
            self._left.append(peer)
            self._peers[address] = successor
        else:
            self._successors[address] = successor
