"""python -m tests.realtime_service.client.mortal: a replica that answers everything, and dies of the text "deadly"."""

import os
import threading
from typing import Any

from protos.scoring.v1 import scoring_pb2
from tests.realtime_service.client.scripted import Script, scripted

ANSWER = scoring_pb2.ScoreResponse(
    results=[scoring_pb2.Result(labels=[scoring_pb2.Label(name="greeting")])], path=scoring_pb2.LATENCY
)


class Mortal(Script):
    def _next(self, method: str, message: Any, context: Any) -> Any:
        if "deadly" in message.texts:
            os._exit(1)
        return super()._next(method, message, context)


if __name__ == "__main__":
    with scripted(ANSWER, kind=Mortal) as replica:
        print(replica.address, flush=True)  # noqa: T201 - whoever started it reads it
        threading.Event().wait()
