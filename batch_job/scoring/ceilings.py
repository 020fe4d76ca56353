"""How many rows of a length a device was seen to have no memory for: learnt once, not in every window anew."""

from shared_model.encoding import padded

#: A release, and the device it runs on, by name.
Place = tuple[str, str]


class Ceilings:
    """Most rows of a batch per (release, device, bucket of widths); the buckets are the lanes' ladder.

    What was too much at one width is too much at every greater one. Nothing is forgotten: memory that another process
    holds now it may hold again, and a batch half as large costs little.
    """

    def __init__(self) -> None:
        self._most: dict[tuple[Place, int], int] = {}

    def most(self, place: Place, tokens: int, rows: int) -> int:
        """Of so many rows of so many tokens, how many may run at once."""
        bucket = padded(tokens)
        known = (most for (where, width), most in self._most.items() if where == place and width <= bucket)
        return min(rows, min(known, default=rows))

    def too_many(self, place: Place, tokens: int, rows: int) -> None:
        """So many rows of so many tokens did not fit: half of them next time, one at least."""
        self._most[place, padded(tokens)] = max(1, rows // 2)
