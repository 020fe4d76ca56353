"""python -m tests.load.tracing_by_turns serve: the service on one core, whose tracing each SIGUSR1 turns off, or on."""

import os
import signal
import sys
from contextlib import AbstractContextManager
from typing import Any

from realtime_service.__main__ import main
from realtime_service.telemetry.calls import CallTracer

_TRACED = CallTracer.traced


def _untraced(self: CallTracer, method: str, metadata: object, held: AbstractContextManager[None], **more: Any) -> Any:
    return held


def _turn(*_: object) -> None:
    CallTracer.traced = _untraced if CallTracer.traced is _TRACED else _TRACED  # type: ignore[method-assign]


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    signal.signal(signal.SIGUSR1, _turn)
    sys.exit(main(sys.argv[1:]))
