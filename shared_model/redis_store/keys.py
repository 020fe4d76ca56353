"""Every Redis key Tandem uses, as a function. The part in braces is the hash tag: keys that one script or
transaction touches together share it, so that they live on one node of a cluster."""

import hashlib


def release_pointer() -> str:
    """Hash {version, active, previous, canary, weight}: which release answers."""
    return "tandem:{release}:pointer"


def replica(replica_id: str) -> str:
    """protobuf ReplicaState with a TTL: a replica's heartbeat."""
    return f"tandem:{{routing}}:replica:{replica_id}"


def replicas() -> str:
    """Set of replica ids; one whose heartbeat has expired is removed by whoever notices."""
    return "tandem:{routing}:replicas"


def replica_word() -> str:
    """Random bytes that replicas know each other by: who can read them may say which lane a call is for."""
    return "tandem:{routing}:word"


def routing_policy() -> str:
    """protobuf RoutingPolicy: what operators have changed."""
    return "tandem:{routing}:policy"


def deferred_stream() -> str:
    """Stream of accepted work: fields id, work (protobuf DeferredWork)."""
    return "tandem:{deferred}:stream"


def deferred_item(request_id: str) -> str:
    """Hash of one submitted request: state, entry (its id in the stream), due (milliseconds of Redis' clock, where it
    has a time to be delivered by), result (protobuf ScoreResponse), computed_by, failure."""
    return f"tandem:{{deferred}}:item:{request_id}"


def dead_letters() -> str:
    """Stream of work that was given up because its consumers died: fields id, work (protobuf DeferredWork),
    deliveries."""
    return "tandem:{deferred}:dead"


def partition_token(ds: str) -> str:
    """Integer that grows with every attempt at a partition."""
    return f"tandem:{{nightly}}:token:{ds}"


def last_run() -> str:
    """JSON record of the last nightly run that published."""
    return "tandem:{nightly}:last_run"


def epoch_pointer(release: str) -> str:
    """Hash {epoch, ds, token, previous, barrier_ds, barrier_token}: the published epoch that answers for a release, the
    names of those kept behind it, and up to where no epoch is published again by itself."""
    return f"tandem:{{scores:{release}}}:pointer"


def epoch_scores(release: str, epoch: str) -> str:
    """Hash of 16-byte encoding key → protobuf PublishedScore."""
    return f"tandem:{{scores:{release}}}:epoch:{epoch}"


def encoding(release: str, ids: bytes, types: bytes) -> bytes:
    """16 bytes that name (release, encoded tokens): two texts the model cannot tell apart share them.

    `ids`, `types`: int32, one for each token; `types` empty where the model does not read them.
    """
    return hashlib.blake2b(release.encode() + b"\0" + ids + types, digest_size=16).digest()


def epoch_filter(release: str, epoch: str) -> str:
    """Bytes of the Bloom filter over an epoch's keys."""
    return f"tandem:{{scores:{release}}}:filter:{epoch}"


def epoch_facts(release: str, epoch: str) -> str:
    """Hash {precision, count, checksum} of an epoch."""
    return f"tandem:{{scores:{release}}}:facts:{epoch}"
