"""What spark-submit runs to meet the classes of a nightly run: a small day read, judged and arranged, no scores."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from batch_job.inputs import reading, source
from batch_job.shards import binning
from batch_job.spark import session

_ROWS, _TASKS = 64, 2


def main() -> None:
    spark = session.start("tandem warm")
    with tempfile.TemporaryDirectory() as folder:
        messages = (json.dumps({"id": str(number), "text": f"message {number}"}) for number in range(_ROWS))
        Path(folder, "messages.jsonl").write_text("\n".join([*messages, "damaged"]) + "\n")
        lines = reading.judged_lines(session.planned_once(spark, _TASKS), source.read_folder(folder), _TASKS)
        lines, bits = binning.hashed(lines).persist(), binning.cell_bits(_ROWS, _ROWS)
        cells = lines.filter("reason is null").selectExpr(f"{binning.cell(bits)} as cell")
        counted = cells.groupBy("cell").count().toArrow().to_pylist()
        buckets = binning.pack({each["cell"]: binning.Load(each["count"], each["count"]) for each in counted}, _ROWS)
        arranged = binning.arranged(lines.filter("reason is null"), buckets, bits, _TASKS)
        arranged.mapInArrow(_rows, "rows long").collect()
    spark.stop()


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


if __name__ == "__main__":
    main()
