"""Recipes for the INT8 graph of a model, from cheap to strong. Loads openvino and nncf: only building does."""

import functools
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

#: A CPU without VNNI adds pairs of 8-bit products in 16 bits, which overflow silently unless weights use half their
#: range.
_NARROW = not devices.has_vnni()


#: Least share of linear layers that read INT8 in a graph that is called INT8.
LEAST_INT8 = 0.75
#: Texts of the validation that layers are ranked on: with a third of them, the order is another.
_RANKED_ON = 200

#: Linear layers that read one rounded tensor, such as query, key and value: names of operations, sorted.
Group = tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """Post-training quantisation on at most `texts` calibration texts.

    `spared`: largest share of the linear layers that stays in fp32, the most sensitive first. `smoothing`: share of the
    activations' outliers that moves into the weights (SmoothQuant's alpha), from 0 to 1; -1 for none. `symmetric`:
    activations' ranges are symmetric around 0 (NNCF's performance preset), else the mixed one. `corrected`: whether
    biases are corrected for the mean error.
    """

    texts: int
    spared: float = 0.0
    smoothing: float = 0.8
    symmetric: bool = False
    corrected: bool = True

    @property
    def name(self) -> str:
        smoothed = f"smoothing {self.smoothing:g}" if self.smoothing >= 0 else "no smoothing"
        preset = "performance preset" if self.symmetric else "mixed preset"
        correction = "" if self.corrected else ", biases not corrected"
        sparing = f", the most sensitive {self.spared:.0%} of linear layers in fp32" if self.spared else ""
        narrow = ", weights in 7 bits" if _NARROW else ""
        return f"{smoothed}, {preset}{correction}, up to {self.texts:,} texts{sparing}{narrow}"


#: In the order of trial, from `make bench-recipes` (table in README.md): of the graphs without spared layers, the first
#: has the least error on each task, and more texts, another preset, smoothing or correction gain nothing that the tasks
#: show; what does is to spare layers, and each step of that makes batches slower (64×32: 1.2 and 1.6 times).
RECIPES = (Recipe(400), Recipe(400, spared=0.1), Recipe(400, spared=0.25))


class Quantiser:
    """Applies recipes to one graph that reads (ids, mask[, types]), which stays as it is.

    Layers are ranked once, on the first of `validation`, when the first recipe spares some.
    """

    def __init__(self, model: ov.Model, calibration: Sequence[Encoding], validation: Sequence[Encoding]) -> None:
        self._model = model
        self._calibration = calibration
        self._validation = validation[:_RANKED_ON]
        self._linear = linear_layers(model)
        #: A graph without spared layers, if a recipe has made one.
        self._whole: ov.Model | None = None

    def apply(self, recipe: Recipe) -> ov.Model:
        """Raises: QuantisationError if fewer linear layers than LEAST_INT8 would read INT8, or none can be spared; any
        exception of NNCF."""
        # After ranking, quantise again, so that the other layers are smoothed and calibrated for the final graph.
        # Undoing single layers, as NNCF's accuracy control does, restores weights that no longer fit the smoothed
        # activations.
        made = _quantise(self._model, recipe, self._calibration, self._spared(recipe) if recipe.spared else ())
        if not recipe.spared and self._whole is None:
            self._whole = made.clone()
        if (share := int8_share(made)) < LEAST_INT8:
            raise QuantisationError(f"only {share:.0%} of linear layers read INT8, {LEAST_INT8:.0%} must")
        return made

    def _spared(self, recipe: Recipe) -> list[str]:
        """The most sensitive groups that fit into the recipe's share, beside the layers that never read INT8."""
        most = recipe.spared * len(self._linear) - (len(self._linear) - sum(map(len, self._ranked)))
        spared: list[str] = []
        for group in self._ranked:
            if len(spared) + len(group) <= most:
                spared += group
        if not spared:
            raise QuantisationError(f"no group of the {len(self._linear)} linear layers is within {recipe.spared:.0%}")
        return spared

    @functools.cached_property
    def _ranked(self) -> list[Group]:
        whole = self._whole or _quantise(self._model, RECIPES[0], self._calibration)
        return rank(whole, self._model, self._validation)


class QuantisationError(ValueError):
    """A recipe does not make a graph that is called INT8."""


def int8_share(quantised: ov.Model) -> float:
    """Share of the linear layers that read INT8; 1 in a graph without linear layers."""
    linear = linear_layers(quantised)
    rounded = {name for node in quantised.get_ordered_ops() if _rounds(node) for name in _group(node)}
    return len(linear & rounded) / len(linear) if linear else 1.0


def linear_layers(model: ov.Model) -> set[str]:
    """Names of the matrix multiplications by weights."""
    matmuls = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
    return {node.get_friendly_name() for node in matmuls if _is_linear(node)}


def rank(quantised: ov.Model, model: ov.Model, texts: Sequence[Encoding]) -> list[Group]:
    """Groups of layers that read INT8, most sensitive first, by the remaining error if only this group's input is not
    rounded."""
    batches = [collate([texts[i] for i in rows]) for rows in plan_batches([e.tokens for e in texts], 64, 2048)]
    expected = _outputs(model, batches)
    trial = quantised.clone()
    roundings = [node for node in trial.get_ordered_ops() if _rounds(node) and _group(node)]
    left = {_group(node): _error_without(node, trial, batches, expected) for node in roundings}
    return sorted(left, key=left.__getitem__)


def _quantise(model: ov.Model, recipe: Recipe, calibration: Sequence[Encoding], spared: Sequence[str] = ()) -> ov.Model:
    # One text at a time: ranges must not be measured on padding.
    inputs = [_inputs(collate([text])) for text in calibration[: recipe.texts]]
    return nncf.quantize(
        model,
        nncf.Dataset(inputs),
        subset_size=len(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        preset=nncf.QuantizationPreset.PERFORMANCE if recipe.symmetric else nncf.QuantizationPreset.MIXED,
        ignored_scope=nncf.IgnoredScope(names=list(spared)) if spared else None,
        advanced_parameters=AdvancedQuantizationParameters(
            overflow_fix=OverflowFix.ENABLE if _NARROW else OverflowFix.FIRST_LAYER,
            disable_bias_correction=not recipe.corrected,
            activations_range_estimator_params=RangeEstimatorParametersSet.HISTOGRAM,
            smooth_quant_alphas=AdvancedSmoothQuantParameters(matmul=recipe.smoothing),
        ),
    )


def _inputs(batch: TokenBatch) -> dict[str, NDArray[np.int64]]:
    inputs = {"ids": batch.ids, "mask": batch.mask}
    return inputs if batch.types is None else {**inputs, "types": batch.types}


def _outputs(model: ov.Model, batches: Sequence[TokenBatch]) -> Floats:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([compiled(_inputs(batch))[0] for batch in batches])


def _rounds(node: ov.Node) -> bool:
    return bool(node.get_type_name() == "FakeQuantize")


def _group(rounding: ov.Node) -> Group:
    """The linear layers that read a rounded tensor; empty if others read it."""
    readers = (target.get_node() for target in rounding.output(0).get_target_inputs())
    return tuple(sorted(node.get_friendly_name() for node in readers if _is_linear(node)))


def _is_linear(node: ov.Node) -> bool:
    return node.get_type_name() == "MatMul" and _is_constant(node.input_value(1).get_node())


def _is_constant(node: ov.Node) -> bool:
    """Whether a tensor is the same for all inputs: weights, also those that are widened from INT8."""
    sources = [value.get_node() for value in node.input_values()]
    return node.get_type_name() == "Constant" or (bool(sources) and all(map(_is_constant, sources)))


def _error_without(rounding: ov.Node, model: ov.Model, batches: Sequence[TokenBatch], expected: Floats) -> float:
    """Mean square error of the outputs if the readers of `rounding` get unrounded input. Restores `model`."""
    readers = rounding.output(0).get_target_inputs()
    for reader in readers:
        reader.replace_source_output(rounding.input_value(0))
    error = float(np.square(_outputs(model, batches) - expected).mean())
    for reader in readers:
        reader.replace_source_output(rounding.output(0))
    return error
