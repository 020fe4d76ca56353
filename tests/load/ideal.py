"""The best that a service of a given capacity can do with calls that it did not choose: no I/O, no clock."""

from tests.load.arrivals import Times


def in_time(sent: Times, capacity: float, base: float, timeout: float) -> float:
    """The share of calls, sent at these times, that one queue answers in time: its server takes 1 / `capacity` seconds
    for each, and it admits a call exactly if that ends, `base` seconds for the way there and back included, within
    `timeout` seconds."""
    free, answered = 0.0, 0
    for at in sent.tolist():
        finish = max(free, at) + 1 / capacity
        if finish + base <= at + timeout:
            free, answered = finish, answered + 1
    return answered / len(sent)
