"""The cost of scoring."""


def cost_per_million(price_per_hour: float, rows_per_second: float) -> float:
    """The cost of a million messages at a price per hour and a rate of messages per second."""
    return price_per_hour * 1e6 / rows_per_second / 3600
