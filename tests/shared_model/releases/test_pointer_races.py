"""Many changes of the pointer at once: each takes a version of its own, none is lost, and readers see whole files."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import Pool
from pathlib import Path
from threading import Barrier

import pytest
import redis

from shared_model.releases import pointer
from shared_model.releases.store import Store

A = f"small-{'a' * 12}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def versions_of_threads(store: Store, connect: Callable[[], "redis.Redis | None"], threads: int, each: int) -> set[int]:
    together = Barrier(threads)

    def promote(_: int) -> list[int]:
        client = connect()
        together.wait()
        return [pointer.promote(store, client, A).version for _ in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        taken = [version for versions in pool.map(promote, range(threads)) for version in versions]
    assert len(taken) == threads * each
    return set(taken)


def test_threads_take_a_version_each(store: Store, redis_client: "redis.Redis", redis_url: str) -> None:
    assert versions_of_threads(store, lambda: redis.Redis.from_url(redis_url), 8, 10) == set(range(1, 81))
    assert pointer.read(store, None) == pointer.read(store, redis_client)
    assert pointer.read(store, redis_client).version == 80


def test_threads_take_a_version_each_with_the_file_alone(store: Store) -> None:
    assert versions_of_threads(store, lambda: None, 8, 20) == set(range(1, 161))
    assert pointer.read(store, None).version == 160


def test_hosts_take_a_version_each(tmp_path: Path, redis_client: "redis.Redis", redis_url: str) -> None:
    """Only Redis is shared: no lock keeps them apart."""
    together = Barrier(6)

    def promote(host: int) -> list[int]:
        store, client = Store(tmp_path / str(host)), redis.Redis.from_url(redis_url)
        together.wait()
        return [pointer.promote(store, client, A).version for _ in range(10)]

    with ThreadPoolExecutor(6) as pool:
        taken = [version for versions in pool.map(promote, range(6)) for version in versions]
    assert len(set(taken)) == len(taken) == 60
    assert pointer.read(Store(tmp_path), redis_client).version == max(taken)


def promote_in_process(root: Path, url: str, times: int) -> list[int]:
    client = redis.Redis.from_url(url) if url else None
    return [pointer.promote(Store(root), client, A).version for _ in range(times)]


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        yield pool


@pytest.mark.parametrize("with_redis", [True, False])
def test_processes_take_a_version_each(tmp_path: Path, redis_url: str, processes: Pool, with_redis: bool) -> None:
    jobs = [(tmp_path, redis_url if with_redis else "", 15)] * 4
    taken = [version for versions in processes.starmap(promote_in_process, jobs, chunksize=1) for version in versions]
    assert sorted(taken) == list(range(1, 61))
    assert pointer.read(Store(tmp_path), None).version == 60


@pytest.mark.heavy
def test_a_reader_never_meets_half_a_file(store: Store, tmp_path: Path) -> None:
    """The file twin is read by replicas while it is written."""
    pointer.promote(store, None, A)
    code = (
        "import sys; from shared_model.releases import pointer; from shared_model.releases.store import Store\n"
        "for n in range(300): pointer.promote(Store(sys.argv[1]), None, f'small-{n:012x}')"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as writer:
        seen = [pointer.read(store, None).version]
        while writer.poll() is None:
            seen.append(pointer.read(store, None).version)
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert pointer.read(store, None).version == 301
