"""Plan a run: pin the release, check and fingerprint the input, write the record. No JVM, no model."""

import gzip
import hashlib
import json
import os
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import redis

from batch_job.record import Input, InputFile, RunRecord, Runtime
from shared_model.errors import JobError
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings

_CHUNK = 1 << 20
_SUFFIXES = (".jsonl", ".jsonl.gz")


def plan_run(state: StateSettings, client: "redis.Redis | None", ds: str, run_id: str) -> RunRecord:
    """Everything the later steps must agree on, decided once. Raises: JobError, ReleaseError."""
    check_day(ds)
    store = Store.of(state)
    release = store.open(pointer.read(store, client).active)
    if release.manifest.reads.pairs:
        raise JobError(f"release {release.id} reads pairs of texts; lines of the archive hold one, so promote another")
    return RunRecord(
        ds=ds,
        run_id=run_id,
        planned_at=datetime.now(UTC).isoformat(timespec="seconds"),
        release=release.id,
        runtime=Runtime(sys.prefix, f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"),
        input=read_input(state.messages_dir / f"ds={ds}"),
    )


def check_day(ds: str) -> None:
    """Raises: JobError unless `ds` is a day as YYYY-MM-DD."""
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", ds):
            raise ValueError
        date.fromisoformat(ds)
    except ValueError as error:
        raise JobError(f"--ds {ds!r}: expected a day as YYYY-MM-DD; trigger the DAG with a partition key") from error


def read_input(folder: Path) -> Input:
    """List and fingerprint a partition's files. Raises: JobError naming the path that cannot be read."""
    if not folder.is_dir():
        raise JobError(f"no messages: {folder} is not a folder; write the partition, or check TANDEM_MESSAGES")
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIXES) and path.name[0] not in "._")
    if not paths:
        raise JobError(f"no messages: {folder} holds no {' or '.join(_SUFFIXES)} file")
    files = tuple(_read_file(path) for path in paths)
    named = json.dumps([[file.name, file.size, file.sha256] for file in files])
    return Input(str(folder), files, hashlib.sha256(named.encode()).hexdigest())


def check_unchanged(planned: Input) -> None:
    """Raises: JobError when a planned file is gone or has another size. Contents are held by the count of lines."""
    for file, path in zip(planned.files, planned.paths, strict=True):
        size = os.path.getsize(path) if os.path.exists(path) else None
        if size != file.size:
            raise JobError(f"{path} changed after the run was planned ({file.size} bytes then); plan it anew")


def _read_file(path: Path) -> InputFile:
    try:
        digest, size = hashlib.sha256(), 0
        with open(path, "rb") as raw:
            while chunk := raw.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        return InputFile(path.name, size, digest.hexdigest(), _count_lines(path))
    except (OSError, EOFError) as error:
        raise JobError(f"{path} cannot be read: {error}") from error


def _count_lines(path: Path) -> int:
    """Lines as Spark's text source sees them: a last line needs no newline."""
    lines, last = 0, b"\n"
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as content:
        while chunk := content.read(_CHUNK):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")
