"""Recipes for the INT8 graph of a model, from cheap to strong. Loads openvino and nncf: only building does."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import nncf
import numpy as np
import openvino as ov
import rich
from nncf.quantization.advanced_parameters import (
    AdvancedQuantizationParameters,
    AdvancedSmoothQuantParameters,
    OverflowFix,
)
from nncf.quantization.range_estimator import RangeEstimatorParametersSet
from numpy.typing import NDArray

from shared_model import devices
from shared_model.encoding import Encoding, TokenBatch, collate, plan_batches
from shared_model.output import Floats

# At its default level, nncf logs every spared layer twice.
nncf.set_log_level(logging.WARNING)
# Its progress bars would break up the build's own lines and fill logs.
rich.reconfigure(quiet=True)

#: Share of the activations' outliers that moves into the weights: 0 none, 1 all. On the default release the logits'
#: error is smallest here (NNCF's own 0.95: 0.120, 0.85: 0.115, 0.8: 0.107, 0.7: 0.119, 0.5: 0.226).
_SMOOTHING = 0.8
#: A CPU without VNNI adds pairs of 8-bit products in 16 bits, which overflow silently unless weights use half their
#: range.
_NARROW = not devices.has_vnni()


@dataclass(frozen=True)
class Recipe:
    """Post-training quantisation on at most `texts` calibration texts.

    `spared`: share of the quantised layers that stay in fp32, the most sensitive first.
    """

    texts: int
    spared: float = 0.0

    @property
    def name(self) -> str:
        sparing = f", the most sensitive {self.spared:.0%} of layers in fp32" if self.spared else ""
        narrow = ", weights in 7 bits" if _NARROW else ""
        return f"smoothed transformer preset, up to {self.texts:,} texts{sparing}{narrow}"


#: In the order of trial: each takes longer to build than the one before, and those that spare layers run slower (64×32
#: takes 1.3 and 1.7 times as long). More than 1,000 texts, or a quarter of the layers, gains little.
RECIPES = (Recipe(400), Recipe(1000), Recipe(1000, spared=0.1), Recipe(1000, spared=0.25))


def apply(recipe: Recipe, model: ov.Model, calibration: Sequence[Encoding], validation: Sequence[Encoding]) -> ov.Model:
    """Quantise a graph that reads (ids, mask[, types]). `model` stays as it is.

    Layers are ranked on `validation`; a recipe without spared layers ignores it.
    """
    quantised = _quantise(model, calibration[: recipe.texts])
    if not recipe.spared:
        return quantised
    ranked = rank(quantised, model, validation)
    spared = ranked[: round(len(ranked) * recipe.spared) or 1]
    # Quantised again, so that the other layers are smoothed and calibrated for the final graph. Undoing single layers,
    # as NNCF's accuracy control does, restores weights that no longer fit the smoothed activations.
    return _quantise(model, calibration[: recipe.texts], [name for group in spared for name in group])


def rank(quantised: ov.Model, model: ov.Model, texts: Sequence[Encoding]) -> list[tuple[str, ...]]:
    """Quantised layers, most sensitive first, by the remaining error if only this layer's input is not rounded.

    Layers that read the same rounded tensor (query, key, value) form one group: names of operations, sorted.
    """
    batches = [collate([texts[i] for i in rows]) for rows in plan_batches([e.tokens for e in texts], 64, 2048)]
    expected = _outputs(model, batches)
    trial = quantised.clone()
    # Operations that round the inputs of layers, that is, of matrix multiplications.
    roundings = [it for it in trial.get_ordered_ops() if it.get_type_name() == "FakeQuantize" and _group(it)]
    left = {_group(node): _error_without(node, trial, batches, expected) for node in roundings}
    return sorted(left, key=left.__getitem__)


def _quantise(model: ov.Model, texts: Sequence[Encoding], spared: Sequence[str] = ()) -> ov.Model:
    # One text at a time: ranges must not be measured on padding.
    inputs = [_inputs(collate([text])) for text in texts]
    return nncf.quantize(
        model,
        nncf.Dataset(inputs),
        subset_size=len(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        ignored_scope=nncf.IgnoredScope(names=list(spared)) if spared else None,
        advanced_parameters=AdvancedQuantizationParameters(
            overflow_fix=OverflowFix.ENABLE if _NARROW else OverflowFix.FIRST_LAYER,
            activations_range_estimator_params=RangeEstimatorParametersSet.HISTOGRAM,
            smooth_quant_alphas=AdvancedSmoothQuantParameters(matmul=_SMOOTHING),
        ),
    )


def _inputs(batch: TokenBatch) -> dict[str, NDArray[np.int64]]:
    inputs = {"ids": batch.ids, "mask": batch.mask}
    return inputs if batch.types is None else {**inputs, "types": batch.types}


def _outputs(model: ov.Model, batches: Sequence[TokenBatch]) -> Floats:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([compiled(_inputs(batch))[0] for batch in batches])


def _group(rounding: ov.Node) -> tuple[str, ...]:
    readers = (target.get_node() for target in rounding.output(0).get_target_inputs())
    return tuple(sorted(node.get_friendly_name() for node in readers if node.get_type_name() == "MatMul"))


def _error_without(rounding: ov.Node, model: ov.Model, batches: Sequence[TokenBatch], expected: Floats) -> float:
    """Mean square error of the outputs if the readers of `rounding` get unrounded input. Restores `model`."""
    readers = rounding.output(0).get_target_inputs()
    for reader in readers:
        reader.replace_source_output(rounding.input_value(0))
    error = float(np.square(_outputs(model, batches) - expected).mean())
    for reader in readers:
        reader.replace_source_output(rounding.output(0))
    return error
