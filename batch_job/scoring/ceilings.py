"""Rows of a length that did not fit a device's memory: found once, not in every window anew."""

from shared_model.encoding import coarse_bucket

#: A release, and the device it runs on, by name.
DeviceKey = tuple[str, str]


class Ceilings:
    """Most rows of a batch per (release, device, coarse padding bucket).

    Rows that did not fit at one width do not fit at a greater one. A limit is kept for good: another process that holds
    memory now may hold it again, and a batch half as large costs little.
    """

    def __init__(self) -> None:
        self._most: dict[tuple[DeviceKey, int], int] = {}

    def most(self, key: DeviceKey, tokens: int, rows: int) -> int:
        """How many of these rows may run at once."""
        bucket = coarse_bucket(tokens)
        known = (most for (where, width), most in self._most.items() if where == key and width <= bucket)
        return min(rows, min(known, default=rows))

    def too_many(self, key: DeviceKey, tokens: int, rows: int) -> None:
        """Note that these rows did not fit: next time half of them run, at least one."""
        self._most[key, coarse_bucket(tokens)] = max(1, rows // 2)
