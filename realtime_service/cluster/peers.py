"""The connections to the other replicas: one to each address, opened before the first call."""

from collections.abc import Collection
from typing import Any

import grpc
import grpc.aio

from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.cluster.peer_stream import PeerStream
from realtime_service.rpc.keepalive import REPLICA_PING_MS, Options, watchful

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
    """The connection to one replica."""

    def __init__(self, address: str) -> None:
        # Its type stubs require arguments that it does not need.
        self._channel: Any = grpc.aio.insecure_channel(address, options=_OPTIONS)
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
        """`seconds`: how long the call may take. Raises: grpc.aio.AioRpcError."""
        self._calls += 1
        try:
            if len(raw) <= STREAM_BYTES:
                if self._stream is None or not self._stream.open:
                    self._stream = PeerStream(self._channel)
                return await self._stream.call(method, raw, seconds, metadata)
            answer: bytes = await self._channel.unary_unary(method)(raw, timeout=seconds, metadata=tuple(metadata))
            return answer
        finally:
            self._calls -= 1

    async def close(self) -> None:
        await self._channel.close()


class Peers:
    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}

    def at(self, address: str) -> Peer:
        if address not in self._peers:
            self._peers[address] = Peer(address)
        return self._peers[address]

    async def follow(self, addresses: Collection[str]) -> None:
        """Connect to these addresses, and disconnect from others once no call is under way there."""
        for address in addresses:
            self.at(address)
        gone = [address for address, peer in self._peers.items() if address not in addresses and not peer.busy]
        for peer in [self._peers.pop(address) for address in gone]:
            await peer.close()

    async def close(self) -> None:
        """Calls under way are cancelled."""
        for peer in [self._peers.pop(address) for address in list(self._peers)]:
            await peer.close()
