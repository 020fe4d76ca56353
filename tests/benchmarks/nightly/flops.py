"""How much of a GPU's arithmetic a rate of rows is: model FLOP utilisation."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Name → FLOPs a second of dense FP16 on its tensor cores, as NVIDIA's data sheets say; the first that fits counts.
_PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "T4": 65e12,
}


def of_texts(model: Mapping[str, Any], lengths: Sequence[int]) -> float:
    """Multiplications and additions of an encoder's layers for texts of so many tokens; `model` is its Hugging Face
    config. Padding is no work, and look-ups, norms and heads are next to none."""
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    of_token = 8 * hidden * hidden + 4 * hidden * inner
    each = (tokens * of_token + 4 * tokens * tokens * hidden for tokens in lengths)
    return float(model["num_hidden_layers"] * sum(each))


def peak(name: str) -> float:
    """Peak of the GPU of that name, 0 if it is unknown."""
    return next((flops for known, flops in _PEAKS.items() if known in name), 0.0)
