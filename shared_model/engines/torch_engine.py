"""FP16 on CUDA, by torch. The same code runs on CPU, slowly, for tests without a GPU."""

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared_model.encoding import TokenBatch
from shared_model.engines import torch_packing
from shared_model.engines.torch_model import load_module, model_config
from shared_model.engines.torch_packing import Packing
from shared_model.errors import OutOfMemory
from shared_model.types import Device, Precision

_DTYPE = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


def use_gpu(number: int) -> None:
    torch.cuda.set_device(number)


class TorchEngine:
    """See `shared_model.engine.Engine`. `packs`: whether padding is skipped.

    On CUDA it stays on the opening thread's GPU, whichever thread calls it.
    """

    width = 1
    streams = 1

    def __init__(self, files: Mapping[str, bytes], precision: Precision, device: Device) -> None:
        self.precision = precision
        self.device = device
        self._at = torch.device("cuda", torch.cuda.current_device()) if device is Device.CUDA else torch.device("cpu")
        self.packs = torch_packing.possible(model_config(json.loads(files["config.json"])), precision, device)
        self._model = load_module(files, self.packs).to(self._at)
        for parameter in self._model.parameters():
            # Parameters only: buffers hold positions and rotations, which need full precision.
            parameter.data = parameter.data.to(_DTYPE[precision])

    def rows(self, tokens: int, single: bool = False) -> Sequence[int]:
        # Any size runs; these sizes limit the warm-up.
        return (1,) if single else (1, 2, 4, 8, 16, 32, 64)

    def widened(self, threads: int) -> None:
        """None: one call uses the whole device."""

    def specialise(self, tokens: int, pairs: bool = False) -> None:
        """Does nothing: torch compiles no shapes."""

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        for shape in shapes:
            self.score(TokenBatch(np.ones(shape, np.int64), np.ones(shape, np.int64)))

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        try:
            return self._score(batch)
        except torch.OutOfMemoryError as error:
            problem = str(error).partition(". ")[0]
        # After the except clause: the exception's frames no longer hold tensors.
        torch.cuda.empty_cache()
        raise OutOfMemory(f"{batch.rows} rows of {batch.tokens} tokens: {problem}")

    def _score(self, batch: TokenBatch) -> NDArray[np.float32]:
        packing = Packing.from_mask(batch.mask, self._at) if self.packs else None
        types = None if batch.types is None else self._on_device(batch.types)
        with torch.inference_mode():
            raw = self._model(self._on_device(batch.ids), self._on_device(batch.mask), types, packing)
            return np.asarray(raw.cpu().numpy(), dtype=np.float32)

    def close(self) -> None:
        del self._model
        if self.device is Device.CUDA:
            torch.cuda.empty_cache()

    def _on_device(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._at, non_blocking=True)
