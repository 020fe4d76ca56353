"""grpc_server.py FOLDER PORT executor|inline: grpc.aio in front of fixed-shape engines.

executor: two threads, one engine each. inline: the event loop calls its engine itself; a copy for each core shares
PORT, and that is the floor: nothing is queued, decided or handed over.
"""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio
from scorer import Scorer

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceServicer, add_ScoringServiceServicer_to_server

THREADS = 2


class Service(ScoringServiceServicer):
    def __init__(self, folder: Path, inline: bool) -> None:
        self._own = threading.local()
        self._folder = folder
        self._executor = None if inline else ThreadPoolExecutor(THREADS, initializer=self.open)
        if self._executor:
            # Each waits for the other, so that both threads start.
            both = threading.Barrier(THREADS)
            list(self._executor.map(lambda _: both.wait(), range(THREADS)))
        else:
            self.open()

    def open(self) -> None:
        """Compile this thread's engine."""
        self._own.scorer = Scorer(self._folder)

    def _score(self, text: str) -> list[tuple[str, float]]:
        return self._own.scorer.score([text])[0]

    async def Score(self, request, context):
        text = request.texts[0]
        if self._executor:
            found = await asyncio.get_running_loop().run_in_executor(self._executor, self._score, text)
        else:
            found = self._score(text)
        labels = [scoring_pb2.Label(name=name, score=score) for name, score in found]
        return scoring_pb2.ScoreResponse(results=[scoring_pb2.Result(labels=labels)], precision="int8", batch_size=1)


async def main(folder: Path, port: int, inline: bool) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 1)])
    add_ScoringServiceServicer_to_server(Service(folder, inline), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "inline"))
