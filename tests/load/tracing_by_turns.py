"""python -m tests.load.tracing_by_turns serve: the service on one core, whose tracing each SIGUSR1 turns off, or on.
From the first one on, the system knows the thread that exports spans as `EXPORTER`."""

import os
import signal
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from realtime_service.__main__ import main
from realtime_service.telemetry.calls import CallTracer

EXPORTER = "exporter"
_TRACED = CallTracer.traced


def _untraced(self: CallTracer, method: str, metadata: object, held: AbstractContextManager[None], **more: Any) -> Any:
    return held


def _turn(*_: object) -> None:
    CallTracer.traced = _untraced if CallTracer.traced is _TRACED else _TRACED  # type: ignore[method-assign]
    for thread in threading.enumerate():
        if thread.name.startswith("OtelBatchSpan"):
            Path(f"/proc/self/task/{thread.native_id}/comm").write_text(EXPORTER)


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    signal.signal(signal.SIGUSR1, _turn)
    sys.exit(main(sys.argv[1:]))
