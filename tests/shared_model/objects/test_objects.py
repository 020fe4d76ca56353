"""Objects in a folder and behind a URL behave alike; a real S3 server is behind the URL, and a proxy that fails, and in
proofs an Azure server, too."""

import io
import threading
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shared_model.objects import Objects, open_objects, url
from tests import object_store
from tests.object_store import KEY, SECRET, Fault, Proxy


@pytest.fixture(
    params=[
        "folder",
        "file",
        pytest.param("s3_url", marks=pytest.mark.heavy),
        pytest.param("az_url", marks=pytest.mark.proof),
    ]
)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param.endswith("_url"):
        return open_objects(request.getfixturevalue(request.param))
    return open_objects(tmp_path / "a" if request.param == "folder" else f"file://{tmp_path}/a")


@pytest.fixture
def bucket(s3_url: str) -> Objects:
    return open_objects(s3_url)


def test_what_is_put_is_got(objects: Objects) -> None:
    objects.put("b/note.json", b"old")
    objects.put("b/note.json", b"a new one")
    assert objects.get("b/note.json") == b"a new one"
    found = objects.find("b/note.json")
    assert found
    assert (found.path, found.size) == ("b/note.json", 9)
    assert abs(datetime.now(UTC) - found.modified) < timedelta(minutes=5)


def test_what_is_not_there_is_not_found(objects: Objects) -> None:
    assert objects.find("none") is None
    assert list(objects.list("none")) == []
    objects.delete("none")
    for ask in (objects.get, objects.open):
        with pytest.raises(FileNotFoundError):
            ask("none")


def test_a_list_has_the_objects_inside(objects: Objects) -> None:
    for path in ("x/1", "x/y/2", "xx/3"):
        objects.put(path, b"")
    assert sorted(found.path for found in objects.list("x")) == ["x/1", "x/y/2"]
    assert sorted(found.path for found in objects.list()) == ["x/1", "x/y/2", "xx/3"]
    objects.delete("x/1")
    assert [found.path for found in objects.list("x")] == ["x/y/2"]


def test_many_are_deleted_those_that_are_there(objects: Objects) -> None:
    names = [f"ds=2026-01-01/a b%20+[1]{{é}}&#{number}.json" for number in range(20)]
    for name in [*names, "left"]:
        objects.put(name, b"1")
    objects.delete(*names[:10], "none", *names[10:])
    objects.delete()
    assert [found.path for found in objects.list()] == ["left"]


def test_names_may_hold_anything(objects: Objects) -> None:
    name = "ds=2026-01-01/a b%20+[1]{é}#2.json"
    objects.put(name, b"1")
    assert [found.path for found in objects.list("ds=2026-01-01")] == [name]
    assert objects.get(name) == b"1"


def test_one_of_many_creates(objects: Objects) -> None:
    done: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if objects.create("one", b"%d" % number):
            done.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [objects.get("one")] == [b"%d" % number for number in done]
    assert len(list(objects.list())) == 1


def test_a_file_is_read_here_and_there(objects: Objects) -> None:
    data = bytes(range(256)) * 40_000
    objects.put("big", data)
    with objects.open("big") as file:
        assert file.seek(-10, io.SEEK_END) == len(data) - 10
        assert file.read() == data[-10:]
        file.seek(5_000_000)
        assert file.read(300) == data[5_000_000:5_000_300]
    with objects.open("big") as file:
        assert file.read() == data


def test_parquet_is_read_by_row_group(objects: Objects) -> None:
    sink, table = io.BytesIO(), pa.table({"a": range(10_000)})
    pq.write_table(table, sink, row_group_size=1000, write_page_checksum=True)
    objects.put("t.parquet", sink.getvalue())
    with objects.open("t.parquet") as file, pq.ParquetFile(file, page_checksum_verification=True) as read:
        assert read.read_row_group(7) == table.slice(7000, 1000)


def test_a_busy_service_is_asked_again(bucket: Objects, s3: Proxy) -> None:
    s3.inject(Fault.BUSY, 3)
    s3.inject(Fault.BUSY, 2, "GET")
    s3.inject(Fault.STALL, 1, "GET")
    bucket.put("a", b"1")
    assert bucket.get("a") == b"1"
    assert not s3.pending


def test_many_are_deleted_by_one_request_which_is_sent_again(bucket: Objects, s3: Proxy) -> None:
    """A night of ten million rows deleted 3,092 one after the other."""
    for number in range(5):
        bucket.put(f"a/{number}", b"1")
    s3.clear()
    s3.inject(Fault.BUSY, 1, "POST")
    s3.inject(Fault.LOST, 1, "POST")
    bucket.delete(*(f"a/{number}" for number in range(5)))
    assert not s3.pending
    assert [method for method, _ in s3.seen] == ["POST"] * 3
    assert list(bucket.list()) == []


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.LOST])
def test_a_lost_connection_loses_and_doubles_nothing(bucket: Objects, s3: Proxy, fault: Fault) -> None:
    s3.inject(fault, 2)
    bucket.put("a", b"1")
    s3.inject(fault, 1)
    assert bucket.create("b", b"mine")
    s3.inject(fault, 1)
    assert not bucket.create("b", b"theirs")
    assert not s3.pending
    assert {found.path: bucket.get(found.path) for found in bucket.list()} == {"a": b"1", "b": b"mine"}


def test_giving_up_is_one_line_without_credentials(bucket: Objects, s3: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(url.RETRIES, "max_retries", 2)
    object_store.reconnect()
    s3.inject(Fault.BUSY, 100)
    with pytest.raises(OSError, match="SlowDown: Please reduce your request rate") as raised:
        bucket.put("a", b"1")
    assert "after 2 retries" in str(raised.value)
    s3.clear()
    s3.expire()
    with pytest.raises(OSError, match=r"ExpiredToken: The provided token has expired") as expired:
        bucket.get("a")
    for error in (raised.value, expired.value):
        shown = "".join(traceback.format_exception(error))
        assert KEY not in shown
        assert SECRET not in shown
        assert "\n" not in str(error)


def test_credentials_that_expired_are_read_again(
    s3: Proxy, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_store.refresh_from_endpoint(s3, tmp_path, monkeypatch)
    bucket = open_objects(s3_url)
    bucket.put("a", b"1")
    s3.expire(then="ASIAANOTHER")
    found = bucket.find("a")
    s3.expire("ASIAANOTHER", then="ASIATHIRD")
    assert (found and found.size, bucket.get("a")) == (1, b"1")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("sftp://me:se@cret@host/a", "sftp:// is not served"),
        ("s3://me:se@cret@bucket/a", "credentials come from the environment"),
    ],
)
def test_a_url_that_cannot_be_served_is_refused(place: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        open_objects(place)
    assert "cret" not in str(raised.value)


def test_the_cause_of_an_answer_shows_no_signature() -> None:
    text = (
        "Generic MicrosoftAzure error: Error performing GET https://a.blob.core.windows.net/c/k?sig=S3CRET in 3.1s, "
        "after 2 retries, max_retries: 2, retry_timeout: 60s  - Server returned non-2xx status code: 403 Forbidden: "
        '{"error": "S3CRET"}\n\nDebug source:\nS3CRET'
    )
    assert url.cause(text) == "Server returned non-2xx status code: 403 (after 2 retries)"
    assert url.cause("error sending request for url (https://a.net/k?sig=S3CRET)") == (
        "error sending request for url (https://a.net/k"
    )
