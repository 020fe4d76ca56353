"""Parquet files of an archive that were changed at random: planning reads or refuses them, and survives."""

import io
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

#: Bytes that the process which reads them may map.
LIMIT = 4 << 30
MUTATIONS = 300

READER = """
import io, random, resource, sys
from batch_job.inputs import parquet

resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
whole, draw = sys.stdin.buffer.read(), random.Random(7)
read = refused = 0
for _ in range(int(sys.argv[2])):
    damaged = bytearray(whole)
    # Most of what planning reads is the footer, at the end.
    for _ in range(draw.randint(1, 8)):
        damaged[-1 - int(draw.random() ** 2 * len(damaged))] = draw.randrange(256)
    try:
        parquet.problem(io.BytesIO(damaged), ["id", "text"]) or parquet.rows(io.BytesIO(damaged))
        read += 1
    except Exception:
        refused += 1
print(read, refused)
"""


@pytest.mark.heavy
def test_damaged_footers_end_no_process_and_take_no_memory_without_bound() -> None:
    written = io.BytesIO()
    pq.write_table(pa.table({"id": [f"{n:06d}" for n in range(500)], "text": ["where is my card"] * 500}), written)
    command = [sys.executable, "-c", READER, str(LIMIT), str(MUTATIONS)]
    done = subprocess.run(command, check=False, input=written.getvalue(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    read, refused = map(int, done.stdout.split())
    assert read + refused == MUTATIONS
    assert refused > MUTATIONS // 4
