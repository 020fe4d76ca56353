"""The calls of this process whose texts are coming: what the queues of a device do not show yet."""


class CallsUnderWay:
    """`count`: calls that were accepted and are not answered, also those whose messages are not read yet."""

    def __init__(self) -> None:
        self.count = 0
