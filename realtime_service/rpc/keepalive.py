"""The agreement on pings between those who call and those who listen: a listener hangs up on who pings too often."""

Options = tuple[tuple[str, str | int], ...]

#: Between pings of one replica to another, in milliseconds, and how long an answer to one may take.
REPLICA_PING_MS = 500

#: gRPC options of a listener that takes pings at that pace, with calls and without. Half of it, because a machine that
#: was busy may hand over two at once.
TAKING_PINGS: Options = (
    ("grpc.http2.min_ping_interval_without_data_ms", REPLICA_PING_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
)


def watchful(ping_ms: int, longest_pause_ms: int) -> Options:
    """gRPC options of a channel that notices when the other side is stopped or cut off: then its calls end.

    `ping_ms`: between pings, and how long an answer to one may take; `longest_pause_ms`: between attempts to connect
    again, where by default two minutes may pass.
    """
    return (
        ("grpc.keepalive_time_ms", ping_ms),
        # Without the second of these the third has no effect.
        ("grpc.http2.ping_timeout_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", ping_ms),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", longest_pause_ms),
    )
