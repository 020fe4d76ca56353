"""Where a day's messages are, and what keeps them from being read: found before anything is scored, without a JVM."""

import gzip
import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from batch_job.inputs import delta, ids, json_lines, source
from batch_job.inputs.files import Folder
from batch_job.inputs.source import Source, read_folder
from batch_job.run_record import COLUMNS, Columns, Format, Input
from batch_job.settings import InputSettings
from shared_model import settings
from shared_model.errors import JobError, NoInput, SettingError
from shared_model.objects import open_objects
from shared_model.settings import StateSettings
from tests.batch_job.inputs.written import DAY, Row, write
from tests.object_store import Proxy

ROWS = [{"id": f"m{number}", "text": f"hello {number}"} for number in range(5)]
FORMATS = list(Format)


def read(root: Path, form: Format, columns: Columns = COLUMNS) -> Input:
    """The day as a run sees it, the format found by itself."""
    if form is Format.DELTA:
        return Source(str(root), columns=columns).read(DAY)
    return Source(str(root / "{year}" / "{month}-{day}"), columns=columns).read(DAY)


def write_day(root: Path, form: Format, rows: Sequence[Row]) -> None:
    write(root if form is Format.DELTA else root / "2026" / "01-14", form, rows)


def parquet_of(rows: pa.Table) -> bytes:
    written = io.BytesIO()
    pq.write_table(rows, written)
    return written.getvalue()


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_is_found_and_its_rows_are_counted(tmp_path: Path, form: Format) -> None:
    write_day(tmp_path, form, ROWS)
    found = read(tmp_path, form)
    assert (found.format, found.lines, found.columns) == (form, 5, Columns())


@pytest.mark.parametrize("form", FORMATS)
def test_an_added_column_passes(tmp_path: Path, form: Format) -> None:
    write_day(tmp_path, form, [{"new": number, **row} for number, row in enumerate(ROWS)])
    assert read(tmp_path, form).lines == 5


@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_column_is_named(tmp_path: Path, form: Format) -> None:
    write_day(tmp_path, form, [{"id": row["id"], "body": row["text"]} for row in ROWS])
    with pytest.raises(JobError, match=r"has no column 'text'.*nothing was scored"):
        read(tmp_path, form)
    assert read(tmp_path, form, Columns(text="body")).columns.text == "body"


@pytest.mark.parametrize("form", [form for form in FORMATS if form is not Format.CSV])
def test_a_retyped_column_is_named(tmp_path: Path, form: Format) -> None:
    write_day(tmp_path, form, [{"id": row["id"], "text": number} for number, row in enumerate(ROWS)])
    with pytest.raises(JobError, match=r"column 'text'.* (but number|as int64, not as string: cast it)"):
        read(tmp_path, form)


@pytest.mark.parametrize("form", [form for form in FORMATS if form is not Format.CSV])
def test_ids_that_are_lists_are_refused_by_name(tmp_path: Path, form: Format) -> None:
    write_day(tmp_path, form, [{"id": [number], "text": row["text"]} for number, row in enumerate(ROWS)])
    with pytest.raises(JobError, match=r"column 'id'.* (array|list<.*>, which is not read as an id).*: cast it to str"):
        read(tmp_path, form)


@pytest.mark.parametrize("form", FORMATS)
def test_ids_that_are_numbers_are_noted(tmp_path: Path, form: Format) -> None:
    write_day(tmp_path, form, [{"id": number, "text": row["text"]} for number, row in enumerate(ROWS)])
    kind = {Format.CSV: "", Format.JSON_LINES: "number"}.get(form, "int64")
    assert ids.note(read(tmp_path, form)) == (kind and f"ids of type {kind} are read as text")


def test_one_file_of_many_that_lacks_a_column_is_named_before_any_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / f"{number}.parquet")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "3.parquet")
    monkeypatch.setattr(Folder, "sha256", lambda *_: pytest.fail("read before the schemas were known"))
    with pytest.raises(JobError, match=r"3\.parquet has no column 'text'"):
        read_folder(tmp_path)


def test_lines_without_one_object_have_no_columns_to_miss(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\nno json\n[1]\n")
    assert read_folder(tmp_path).lines == 3


def test_one_good_line_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 7}\n{"text": null}\n{"id": "a", "text": "b"}\n')
    assert read_folder(tmp_path).lines == 3


class Counted(io.BytesIO):
    """Lines, of which those are counted that are asked for."""

    asked = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        self.asked += 1
        return super().readline(size)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"id": "a"}\n', "has no column 'text' in any of its first 100,000 rows"),
        (b'{"id": "a", "text": 7}\n', "has no text in column 'text' of any of its first 100,000 rows, but number"),
    ],
)
def test_of_a_large_file_the_first_lines_are_judged(line: bytes, problem: str) -> None:
    good = b'{"id": "a", "text": "b"}\n'
    too_late = Counted(line * json_lines.MOST_LINES + good)
    assert json_lines.problem(too_late, COLUMNS.names) == problem
    assert too_late.asked == json_lines.MOST_LINES
    in_time = Counted(line * (json_lines.MOST_LINES - 1) + good + line)
    assert json_lines.problem(in_time, COLUMNS.names) == ""
    assert in_time.asked == json_lines.MOST_LINES


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'id,text\na,"b"c\n', "line 2: .*quotes inside quotes are written twice"),
        (b'id,text\na,"never closed\n', "line 2: unexpected end of data"),
        (b"id,text,text\na,b,c\n", "has column 'text' more than once"),
    ],
)
def test_csv_whose_quotes_do_not_fit_is_named_with_its_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(JobError, match=rf"a\.csv .*{problem}"):
        read_folder(tmp_path)


@pytest.mark.parametrize(("separator", "named"), [(";", "';'"), ("\t", "a tab"), ("|", r"'\|'")])
def test_columns_between_other_separators_are_told(tmp_path: Path, separator: str, named: str) -> None:
    (tmp_path / "a.csv").write_text(f"key{separator}text\na{separator}b\n")
    with pytest.raises(
        JobError, match=rf"has no column 'id'; .*: it looks like {named} separates the columns, and Tandem"
    ):
        read_folder(tmp_path)
    (tmp_path / "a.csv").write_text("key;1,text\na,b\n")
    with pytest.raises(JobError, match=r"its header names key;1, text; nothing was scored"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["chats.json", "chats.json.gz", "chats.ndjson"])
def test_json_lines_of_another_ending_are_told_how_to_be_read(tmp_path: Path, name: str) -> None:
    line = b'{"id": "a", "text": "b"}\n'
    (tmp_path / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
    with pytest.raises(NoInput, match=f"if {name} has an object in each line, set TANDEM_INPUT_FORMAT=jsonl"):
        read_folder(tmp_path)
    assert read_folder(tmp_path, form=Format.JSON_LINES).lines == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.csv.gz"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b'id,text\n{"id": "a", "text": "b"}\n' * 1000)[:-20])
    with pytest.raises(JobError, match=rf"{name} cannot be read"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b""),
        ("a.jsonl.gz", gzip.compress(b"")),
        ("a.csv", b"id,text\n"),
        ("a.parquet", parquet_of(pa.schema([("id", pa.string()), ("text", pa.string())]).empty_table())),
    ],
)
def test_a_day_without_a_row_has_no_messages(tmp_path: Path, name: str, content: bytes) -> None:
    """It was committed as a day of 0 rows; so was one whose export had failed."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NoInput, match=rf"no messages: all files of {tmp_path} are empty \(1\)"):
        read_folder(tmp_path)
    write(tmp_path / "other", Format.JSON_LINES, ROWS)
    (tmp_path / "other" / "b.jsonl").touch()
    assert read_folder(tmp_path / "other").lines == 5


def test_two_formats_in_a_folder_need_to_be_told_apart(tmp_path: Path) -> None:
    for form in (Format.CSV, Format.PARQUET):
        write(tmp_path, form, ROWS)
    with pytest.raises(JobError, match="holds csv and parquet files; say which by TANDEM_INPUT_FORMAT"):
        read_folder(tmp_path)


LINE = '{"id": "a", "text": "b"}\n'


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LINE)


@pytest.mark.parametrize("other", ["b.json", "b.jsonl.zst", "B.JSONL", "hour=07/b.jsonl", "night/late/b.csv.gz"])
def test_messages_that_would_be_left_out_are_named(tmp_path: Path, other: str) -> None:
    put(tmp_path, "a.jsonl", other)
    with pytest.raises(JobError, match=f"holds {other} beside a.jsonl and would leave it out"):
        read_folder(tmp_path)


def test_files_beside_the_messages_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", "_SUCCESS", "a.jsonl.md5", "README.txt", ".b.jsonl", "_old/b.jsonl", "notes/c.md")
    assert [file.name for file in read_folder(tmp_path).files] == ["a.jsonl"]


@pytest.mark.parametrize("form", [None, Format.JSON_LINES])
def test_a_day_in_folders_of_its_hours_is_told_where_it_should_be(tmp_path: Path, form: Format | None) -> None:
    put(tmp_path, "hour=07/b.jsonl")
    with pytest.raises(NoInput, match=r"hour=07/b\.jsonl lies in a folder inside it"):
        read_folder(tmp_path, form=form)


def test_a_delta_table_of_each_day_needs_no_partition(tmp_path: Path) -> None:
    write_deltalake(f"{tmp_path}/{DAY}", pa.Table.from_pylist(ROWS))
    found = Source(f"{tmp_path}/{{ds}}").read(DAY)
    assert (found.format, found.lines) == (Format.DELTA, 5)


def test_a_format_that_was_said_needs_no_ending(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(b"id,text\na,b\n")
    assert read_folder(tmp_path, form=Format.CSV).lines == 1
    with pytest.raises(NoInput, match="holds no file that ends in"):
        read_folder(tmp_path)


def test_other_columns_are_another_input(tmp_path: Path) -> None:
    write(tmp_path, Format.PARQUET, [{"id": "a", "text": "b", "body": "c"}])
    assert read_folder(tmp_path).fingerprint != read_folder(tmp_path, Columns(text="body")).fingerprint


def test_a_url_is_read_as_the_folder_it_names(tmp_path: Path) -> None:
    write(tmp_path / f"ds={DAY}", Format.CSV, ROWS)
    found = Source(f"file://{tmp_path}").read(DAY)
    assert found.lines == 5
    assert found.paths == [f"file://{tmp_path}/ds={DAY}/a.csv"]


@pytest.mark.parametrize("form", [form for form in FORMATS if form is not Format.DELTA])
def test_a_day_in_a_store_is_planned_as_one_on_a_disk(
    tmp_path: Path, s3_url: str, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / DAY, form, ROWS)
    bucket, name = open_objects(s3_url), f"ds={DAY}/a.{form}"
    bucket.put(name, content := (tmp_path / DAY / f"a.{form}").read_bytes())
    with monkeypatch.context() as known:
        known.setattr(Folder, "sha256", lambda *_: pytest.fail("its store knows a tag of its content"))
        found = Source(s3_url).read(DAY)
    (here,) = read_folder(tmp_path / DAY).files
    tag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert (found.format, found.files) == (form, (replace(here, sha256=tag),))
    assert found.paths == [f"{s3_url}/{name}"]
    source.check_unchanged(found)
    with pytest.raises(JobError, match=rf"{s3_url}/ds={DAY}/a\.{form} has no column 'body'"):
        Source(s3_url, columns=Columns(text="body")).read(DAY)
    with pytest.raises(NoInput, match=f"{s3_url}/ds=2026-01-15 is not a folder"):
        Source(s3_url).read("2026-01-15")
    bucket.put(name, b"less")
    with pytest.raises(JobError, match=rf"a\.{form} changed after the run was planned"):
        source.check_unchanged(found)


def test_a_file_that_was_put_in_parts_is_fingerprinted_by_its_bytes(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / DAY, Format.CSV, ROWS)
    bucket, content = open_objects(s3_url), (tmp_path / DAY / "a.csv").read_bytes()
    bucket.put(f"ds={DAY}/a.csv", content)
    put = Source(s3_url).read(DAY)
    monkeypatch.setattr(obstore, "put", partial(obstore.put, use_multipart=True))
    bucket.put(f"ds={DAY}/a.csv", content)
    in_parts, local = Source(s3_url).read(DAY), read_folder(tmp_path / DAY)
    assert in_parts.fingerprint == local.fingerprint != put.fingerprint
    assert in_parts.files == local.files


def test_a_store_that_cannot_be_read_is_named_without_credentials(s3: Proxy, s3_url: str) -> None:
    s3.expire()
    with pytest.raises(JobError) as raised:
        Source(s3_url, format=Format.CSV).read(DAY)
    assert str(raised.value) == f"{s3_url}/ds={DAY} cannot be read: ExpiredToken: The provided token has expired."
    with pytest.raises(JobError, match="gopher://host/x cannot be looked at from here: gopher:// is not served: s3://"):
        Source("gopher://me:secret@host/x").read(DAY)


def test_settings_say_where_the_day_is(tmp_path: Path) -> None:
    state = StateSettings(state=tmp_path / "with {braces}")
    write(state.messages_dir / f"ds={DAY}", Format.JSON_LINES, ROWS)
    assert Source.from_settings(state, InputSettings()).read(DAY).lines == 5
    write(tmp_path / "day" / DAY, Format.JSON_LINES, ROWS[:2])
    elsewhere = settings.load(InputSettings, {"TANDEM_INPUT_PATH": f"{tmp_path}/day/{{ds}}/"})
    assert Source.from_settings(state, elsewhere).read(DAY).lines == 2


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TANDEM_INPUT_PATH", "/x/{hour}", "in braces nothing but"),
        ("TANDEM_INPUT_PATH", "/x/{ds", "in braces nothing but"),
        ("TANDEM_INPUT_FORMAT", "xml", "jsonl, csv, parquet or delta"),
        ("TANDEM_INPUT_WAIT_SECONDS", "-1", "0 or more"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingError, match=f"{name}.*{expected}"):
        settings.load(InputSettings, {name: value})


def test_a_day_of_a_delta_table_is_its_files_of_that_day(tmp_path: Path) -> None:
    for day, size in ((DAY, 3), ("2026-01-15", 2)):
        rows = pa.Table.from_pylist(ROWS[:size])
        write_deltalake(
            str(tmp_path), rows.append_column("day", pa.array([day] * size)), partition_by=["day"], mode="append"
        )
    of_day = Source(str(tmp_path), "day").read(DAY)
    assert (of_day.format, of_day.lines, len(of_day.files)) == (Format.DELTA, 3, 1)
    assert all(Path(path).exists() for path in of_day.paths)
    source.check_unchanged(of_day)
    with pytest.raises(NoInput, match="has no partition day=2026-01-16 in version 1"):
        Source(str(tmp_path), "day").read("2026-01-16")
    with pytest.raises(JobError, match="is not partitioned by 'ds', where the day should be: TANDEM_INPUT_PARTITION"):
        Source(str(tmp_path)).read(DAY)


def test_rows_of_a_delta_table_that_does_not_count_them_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, Format.DELTA, ROWS)
    log = tmp_path / "_delta_log" / "00000000000000000000.json"
    log.write_text("\n".join(line.replace("numRecords", "unknown") for line in log.read_text().splitlines()))
    assert pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()[0].get("num_records") is None
    assert Source(str(tmp_path)).read(DAY).lines == 5


def test_a_delta_table_with_deletion_vectors_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, Format.DELTA, ROWS)
    features = '["deletionVectors"]'
    (tmp_path / "_delta_log" / "00000000000000000001.json").write_text(
        '{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, '
        f'"readerFeatures": {features}, "writerFeatures": {features}}}}}\n'
    )
    with pytest.raises(JobError, match=r"asks for reader version 3 \(features: deletionVectors\)"):
        Source(str(tmp_path)).read(DAY)


def test_a_path_that_is_no_delta_table_yet_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="is no Delta table"):
        replace(Source(str(tmp_path)), format=Format.DELTA).read(DAY)


def test_a_log_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{")
    with pytest.raises(JobError, match=f"{tmp_path} cannot be read as a Delta table"):
        delta.open_table(str(tmp_path))


@pytest.mark.parametrize("name", ["../other/x.parquet", "/etc/passwd", "file:///etc/passwd", "a/../../x.parquet"])
def test_a_delta_log_that_names_a_file_outside_of_its_table_is_refused(name: str) -> None:
    folder = delta.Folder("/nowhere")
    with pytest.raises(JobError, match=r"/nowhere names a file outside of it: .*; restore its _delta_log"):
        delta._file(folder, {"path": name, "size_bytes": 1, "num_records": 1}, ["id"], "string")


def test_a_symbolic_link_among_the_messages_is_refused(tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    (tmp_path / "elsewhere").write_text("secret\n")
    (tmp_path / "day" / "p.jsonl").symlink_to(tmp_path / "elsewhere")
    folder = delta.Folder(str(tmp_path / "day"))
    with pytest.raises(JobError, match=r"p\.jsonl is a symbolic link; put the file itself there"):
        folder.names()
    with pytest.raises(JobError, match="is a symbolic link"):
        folder.look("p.jsonl", lambda raw: raw.read())
