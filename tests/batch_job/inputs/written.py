"""Days written in every format, as other tools write them."""

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from batch_job.run_record import Format

DAY = "2026-01-14"
Row = Mapping[str, Any]


def write(folder: Path, form: Format, rows: Sequence[Row], gz: bool = False) -> None:
    """One file of the format in `folder`; for Delta a table whose partition is DAY."""
    folder.mkdir(parents=True, exist_ok=True)
    if form is Format.DELTA:
        table = pa.Table.from_pylist([dict(row) for row in rows])
        days = table.append_column("ds", pa.array([DAY] * len(rows)))
        write_deltalake(str(folder), days, partition_by=["ds"], mode="append")
    elif form is Format.PARQUET:
        pq.write_table(
            pa.Table.from_pylist([dict(row) for row in rows]), folder / "a.parquet", write_page_checksum=True
        )
    else:
        content = _csv(rows) if form is Format.CSV else _json_lines(rows)
        path = folder / f"a.{form}{'.gz' if gz else ''}"
        path.write_bytes(gzip.compress(content) if gz else content)


def _csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _json_lines(rows: Sequence[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
