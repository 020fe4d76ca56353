"""Lines of a file, of a bounded length: a file of a megabyte may unpack to one line of a gigabyte."""

from collections.abc import Iterator
from typing import BinaryIO

#: Bytes of a line. The longest text and its id take much less.
LONGEST_LINE = 16 << 20
_CHUNK = 1 << 20


def lines(content: BinaryIO) -> Iterator[bytes]:
    """Every line, with its newline. Raises: ValueError with the number of a line that is too long."""
    number = 0
    while line := content.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise _too_long(number)
        yield line


def count(content: BinaryIO) -> int:
    """Lines as Spark's text source sees them: a last line needs no newline. Raises: as `lines`."""
    found, length = 0, 0
    while chunk := content.read(_CHUNK):
        # A line that is too long holds whole chunks: those that end inside a chunk are short.
        first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
        if length + (len(chunk) if first < 0 else first) > LONGEST_LINE:
            raise _too_long(found + 1)
        found += chunk.count(b"\n")
        length = length + len(chunk) if last < 0 else len(chunk) - last - 1
    return found + (length > 0)


def _too_long(number: int) -> ValueError:
    return ValueError(f"line {number:,} is longer than {LONGEST_LINE >> 20} MiB")
