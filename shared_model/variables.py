"""The names of all environment variables of Tandem, so that programs can warn of a mistyped one when they start.

Packages declare their own settings, and no program imports all packages: this is the only complete list. A test
compares it with the declarations.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from typing import TextIO

from shared_model.settings import PREFIX

_LANES = ("LATENCY", "DYNAMIC", "THROUGHPUT")
_OF_A_LANE = """
ASSUMED_TIMEOUT_MS CONCURRENCY LOAD_TARGET MAX_DELAY_MS MAX_ROWS P95_MS PRECISION RATE THREADS TOKEN_BUDGET WORKERS
"""
_OTHERS = """
ADVERTISED_HOST AIRFLOW_PORT APPROVAL_SECONDS APPROVERS AUTH BOARD_FRAMES CONFIG
CONNECTION_AGE_SECONDS CONNECTION_GRACE_SECONDS CONNECTION_IDLE_SECONDS
DEFERRED_BOUND DEFERRED_DRAIN_LIMIT DEFERRED_KEEP_SECONDS DEFERRED_WAIT_SECONDS DEVICES DRIFT_BASELINE DRIFT_BOUND
GATE_BATCH_MS GATE_BEAT_CHANCE GATE_LATENCY_MS GATE_MAX_ACCURACY_DROP GATE_MAX_ACTIVE_DROP GATE_MIN_ACCURACY
GATE_MIN_AGREEMENT GATE_MIN_LABELLED_AGREEMENT
GRPC_ADDRESS HARVEST HTTP_ADDRESS HTTP_CONNECTIONS INFLIGHT_CALLER_SHARE INFLIGHT_MEGABYTES
INPUT_FORMAT INPUT_ID INPUT_PAIR INPUT_PARTITION INPUT_PATH INPUT_POLL_SECONDS INPUT_TEXT INPUT_WAIT_SECONDS
INSECURE INTERACTIVE_UNIT_MS KEEP_PREVIOUS_SECONDS KEEP_QUARANTINE_DAYS KEEP_RUNS_DAYS
KEYS LANES LATE_SECONDS LATENCY_BELOW_MS LATENCY_PIPELINE_PARALLEL LOG_FORMAT
MAX_CALLS MAX_STREAMS MESSAGES
METRICS_ADDRESS MODELS MODELS_MEGABYTES
NIGHTLY_BATCH_ROWS NIGHTLY_BATCH_TOKENS NIGHTLY_COLLAPSE NIGHTLY_EXPECTED NIGHTLY_FILE_MEGABYTES
NIGHTLY_IDLE NIGHTLY_INT8 NIGHTLY_MODEL NIGHTLY_MODELS NIGHTLY_POISON NIGHTLY_TASK_ROWS
NIGHTLY_TENSOR_PARALLEL NIGHTLY_UNIT_ROWS
PRECOMPUTED PRECOMPUTED_TIMEOUT_MS PRICE_CURRENCY PRICE_PER_HOUR PROBE_SECONDS PUBLISH_KEEP_SECONDS PUBLISH_MEGABYTES
QUARANTINE_SHARE QUOTA
REDIS_CA REDIS_CERT REDIS_FSYNC REDIS_KEY REDIS_REPLICAS REDIS_REPLICAS_MS REDIS_URL
REFLECTION RELEASE RELEASES REVOKED RUNTIME_PREFIX
SCORES SLA_BOARD_URL SPARK_CONF SPARK_GPU_SCRIPT SPARK_MASTER SPARK_SECRET_FILE SPARK_TASK_GPU SPARK_URL
STATE STORE STREAM_IDLE_SECONDS STREAM_UNREAD_SECONDS
THREADS THROUGHPUT_ABOVE_MS THROUGHPUT_TENSOR_PARALLEL TLS_CA TLS_CERT TLS_CLIENT_CA TLS_KEY TLS_NAME
TOKEN_AUDIENCE TOKEN_ISSUER TOKEN_KEYS TOKEN_MAX_HOURS TRUSTED_KEYS UNSIGNED WORKERS
"""

KNOWN = frozenset(
    PREFIX + name for name in (*_OTHERS.split(), *(f"{lane}_{it}" for lane in _LANES for it in _OF_A_LANE.split()))
)
#: Settings of former versions. The warning about one refers to the changelog, not to a similar name.
REMOVED = frozenset(PREFIX + name for name in ("HEDGED", "QUARANTINE_SECONDS"))
#: Names that a parent process has warned of, separated by commas: its children do not warn of them again.
_WARNED = "_TANDEM_UNKNOWN_VARIABLES"
#: Kubernetes sets NAME_SERVICE_HOST and similar variables for each Service, whose name may begin with "tandem".
_SERVICE_HOST = "_SERVICE_HOST"


def warn(environ: MutableMapping[str, str] = os.environ, stream: TextIO | None = None) -> None:
    """Write a line for each variable that no part of Tandem reads, once: children do not repeat it. Never fails."""
    warned = environ.get(_WARNED, "").split(",")
    services = [re.escape(name.removesuffix(_SERVICE_HOST)) for name in environ if name.endswith(_SERVICE_HOST)]
    others = re.compile(f"(?:{'|'.join(services)})_(?:SERVICE_|PORT)" if services else r"(?!)")
    known = KNOWN.union(warned)
    unknown = [it for it in sorted(environ) if it.startswith(PREFIX) and it not in known and not others.match(it)]
    for name in unknown:
        (stream or sys.stderr).write(f"warning: {name} is set, and Tandem has no such setting{_hint(name)}\n")
    if unknown:
        environ[_WARNED] = ",".join([*filter(None, warned), *unknown])


def _hint(name: str) -> str:
    if name in REMOVED:
        return " any more; CHANGELOG.md says why"
    # Imported here: most programs never need it.
    import difflib

    found = difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.75)
    return f": did you mean {found[0]}?" if found else "; the packages' README.md list them all"
