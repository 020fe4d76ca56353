"""FP16 on CUDA, by torch; the same code runs on CPU (slowly), so that it is tested where there is no GPU.

Also the module that releases are built from: encoder, mean pooling, L2 norm, linear head.
"""

import json
from collections.abc import Iterable, Mapping

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from shared_model.encoding import TokenBatch
from shared_model.types import Device, Precision

_DTYPE = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


class SentenceClassifier(nn.Module):
    """(ids, mask), both int64 (rows, tokens) → logits, fp32 (rows, labels)."""

    def __init__(self, config: Mapping[str, object], labels: int) -> None:
        super().__init__()
        settings = dict(config)
        encoder_config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        self.encoder = AutoModel.from_config(encoder_config, add_pooling_layer=False, attn_implementation="sdpa")
        self.head = nn.Linear(encoder_config.hidden_size, labels)

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Unit-length sentence embeddings, fp32 (rows, hidden)."""
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.linear(self.embed(ids, mask), self.head.weight.float(), self.head.bias.float())


def load_classifier(files: Mapping[str, bytes]) -> SentenceClassifier:
    """Build the module from `config.json` (with `labels`, a count) and `weights.safetensors`; all must match."""
    config = json.loads(files["config.json"])
    model = SentenceClassifier(config["encoder"], config["labels"])
    model.load_state_dict(safetensors.torch.load(files["weights.safetensors"]), strict=True)
    return model.eval()


class TorchEngine:
    """See `shared_model.engine.Engine`."""

    width = 1

    def __init__(self, files: Mapping[str, bytes], precision: Precision, device: Device) -> None:
        self.precision = precision
        self.device = device
        self._model = load_classifier(files).to(device=device.value, dtype=_DTYPE[precision])

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        for shape in shapes:
            self.score(TokenBatch(np.ones(shape, np.int64), np.ones(shape, np.int64)))

    def score(self, batch: TokenBatch) -> NDArray[np.float32]:
        with torch.inference_mode():
            ids = torch.from_numpy(batch.ids).to(self.device.value, non_blocking=True)
            mask = torch.from_numpy(batch.mask).to(self.device.value, non_blocking=True)
            return np.asarray(self._model(ids, mask).cpu().numpy(), dtype=np.float32)

    def close(self) -> None:
        del self._model
        if self.device is Device.CUDA:
            torch.cuda.empty_cache()
