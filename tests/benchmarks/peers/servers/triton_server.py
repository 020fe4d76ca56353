"""triton_server.py FOLDER PORT: Triton by pytriton, two instances, batches of up to 64 as they come, over gRPC."""

import socket
import sys
from pathlib import Path

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from scorer import Scorer

INSTANCES, MAX_BATCH = 2, 64


def instance(folder: Path):
    scorer = Scorer(folder, fixed=False)

    @batch
    def score(text):
        found = scorer.score([value.decode() for value in text[:, 0].tolist()])
        names = np.array([[name.encode() for name, _ in labels] for labels in found], object)
        return {"label": names, "score": np.array([[score for _, score in labels] for labels in found], np.float32)}

    return score


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    config = TritonConfig(
        grpc_address="127.0.0.1", grpc_port=port, http_address="127.0.0.1", http_port=free_port(), allow_metrics=False
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="scorer",
            infer_func=[instance(folder) for _ in range(INSTANCES)],
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="label", dtype=bytes, shape=(3,)), Tensor(name="score", dtype=np.float32, shape=(3,))],
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
        )
        triton.serve()
