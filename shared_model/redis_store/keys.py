"""Every Redis key of Tandem, as a function. The part in braces is the hash tag: keys that one script or transaction
uses together share it, so that they live on one node of a cluster."""

import hashlib


def release_pointer(model: str = "") -> str:
    """Hash {version, active, previous, canary, weight, signer, signature}: the release pointer of a model; "" is the
    default model."""
    return f"tandem:{{release}}:pointer:{model}" if model else "tandem:{release}:pointer"


def release_models() -> str:
    """Set of the models that have a pointer of their own: all that were promoted, but the default one."""
    return "tandem:{release}:models"


def replica(replica_id: str) -> str:
    """protobuf ReplicaState with a TTL: a replica's heartbeat."""
    return f"tandem:{{routing}}:replica:{replica_id}"


def replicas() -> str:
    """Set of replica ids; any replica removes an id whose heartbeat has expired."""
    return "tandem:{routing}:replicas"


def replica_figures(replica_id: str) -> str:
    """JSON of a replica's figures for the SLA board, with a TTL."""
    return f"tandem:{{routing}}:figures:{replica_id}"


def error_budget(period: str) -> str:
    """Hash of requests that missed, and of all that count, with a TTL: of a day ("2026-01-14") by lane, of an hour
    ("2026-01-14T02", UTC) by minute and lane."""
    return f"tandem:{{routing}}:budget:{period}"


def replica_word() -> str:
    """Cluster token: random bytes that authenticate replicas to each other and permit a call to select its lane."""
    return "tandem:{routing}:word"


def routing_policy() -> str:
    """protobuf RoutingPolicy: the operators' overrides."""
    return "tandem:{routing}:policy"


def deferred_stream() -> str:
    """Stream of accepted work: fields id, work (protobuf DeferredWork), content, ticket and model, see `deferred_item`;
    ordered, where it was put into `deferred_order` when it was accepted."""
    return "tandem:{deferred}:stream"


def deferred_order() -> str:
    """Sorted set of the work that no consumer holds: entries of the stream by deadline, infinity without one. Entries
    of one deadline are in their order, because their ids are padded. Scripts derive this key from the stream's."""
    return "tandem:{deferred}:order"


def deferred_item(stored_id: str) -> str:
    """Hash of one submitted request: state, entry (its id in the stream), due (its deadline, if any, in milliseconds of
    Redis' clock), result (protobuf ScoreResponse), computed_by, failure; content (hash of the request) and ticket (that
    readers show, if any), which earlier versions did not store. `stored_id`: see `deferred.owners`."""
    return f"tandem:{{deferred}}:item:{stored_id}"


def dead_letters() -> str:
    """Stream of work that failed by itself or whose consumers died: fields id, work (protobuf DeferredWork),
    content, ticket, model, deliveries."""
    return "tandem:{deferred}:dead"


#: The subjects whose changes by operators are recorded: each is a hash tag.
AUDITED = ("release", "routing", "deferred")


def audit(subject: str) -> str:
    """Stream of operators' changes: fields record (JSON), signer, signature."""
    return f"tandem:{{{subject}}}:audit"


def partition_token(ds: str, model: str = "") -> str:
    """Integer that grows with every attempt at a partition with a model; "" is the default one."""
    return f"tandem:{{nightly}}:token:{ds}:{model}" if model else f"tandem:{{nightly}}:token:{ds}"


def last_run() -> str:
    """JSON record of the last nightly run that published."""
    return "tandem:{nightly}:last_run"


def last_verdicts() -> str:
    """JSON record of the gates' verdicts on the day that was judged last."""
    return "tandem:{nightly}:last_verdicts"


def recent_runs() -> str:
    """List of the same records, the newest first."""
    return "tandem:{nightly}:recent_runs"


def every_epoch() -> str:
    """Pattern of the keys of all epochs and their pointers."""
    return "tandem:{scores:*}:*"


def release_of(key: str) -> str:
    """The release of one of them."""
    return key.removeprefix("tandem:{scores:").partition("}")[0]


def epoch_pointer(release: str) -> str:
    """Hash {epoch, ds, token, previous, barrier_ds, barrier_token}: a release's live epoch, the names of the epochs
    kept for a rollback, and the rollback watermark."""
    return f"tandem:{{scores:{release}}}:pointer"


def epoch_scores(release: str, epoch: str) -> str:
    """Hash of 16-byte encoding key → protobuf PublishedScore."""
    return f"tandem:{{scores:{release}}}:epoch:{epoch}"


def encoding(release: str, ids: bytes, types: bytes) -> bytes:
    """16-byte hash of (release, encoded tokens), equal for texts with the same encoding.

    `ids`, `types`: int32, one for each token; `types` empty if the model does not read them.
    """
    return hashlib.blake2b(release.encode() + b"\0" + ids + types, digest_size=16).digest()


def epoch_filter(release: str, epoch: str) -> str:
    """Bytes of the Bloom filter over an epoch's keys."""
    return f"tandem:{{scores:{release}}}:filter:{epoch}"


def epoch_ids(release: str, epoch: str) -> str:
    """Hash of number of a block, 4 bytes → entries of 8 bytes of a message id's hash and its text's encoding key."""
    return f"tandem:{{scores:{release}}}:ids:{epoch}"


def epoch_facts(release: str, epoch: str) -> str:
    """Hash {precision, count, checksum} of an epoch, and, if it has an index by message id, {id_blocks, id_fields}: of
    how many blocks ids are dealt to, and how many hold any."""
    return f"tandem:{{scores:{release}}}:facts:{epoch}"
