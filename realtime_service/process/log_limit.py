"""Limits the log records that callers can make a library write, such as gRPC's for headers that are no UTF-8."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from shared_model.clock import Clock

#: gRPC logs a traceback for each header that it cannot decode, up to four times a call.
GRPC = "grpc._cython.cygrpc"
#: Records that pass in each period.
MOST = 5
PERIOD_SECONDS = 60.0

log = logging.getLogger(__name__)


class LogLimit(logging.Filter):
    """Lets the first `MOST` records of each period pass, and counts the others in one line at its end."""

    def __init__(self, logger: str, clock: Clock) -> None:
        super().__init__()
        self._logger = logger
        self._clock = clock
        self._end = clock.monotonic() + PERIOD_SECONDS
        self._passed = 0
        self._suppressed = 0

    @contextmanager
    def attached(self) -> Iterator["LogLimit"]:
        logger = logging.getLogger(self._logger)
        logger.addFilter(self)
        try:
            yield self
        finally:
            logger.removeFilter(self)
            self._begin()

    def filter(self, record: logging.LogRecord) -> bool:
        self.look()
        passes = self._passed < MOST
        self._passed += passes
        self._suppressed += not passes
        return passes

    def look(self) -> None:
        """Begin a new period if one is over."""
        if self._clock.monotonic() >= self._end:
            self._begin()

    async def run(self) -> None:
        """Look until cancelled, so that a count does not wait for the next record."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            self.look()

    def _begin(self) -> None:
        suppressed, self._suppressed, self._passed = self._suppressed, 0, 0
        self._end = self._clock.monotonic() + PERIOD_SECONDS
        if suppressed:
            log.warning("%d more records of %s were suppressed", suppressed, self._logger)
