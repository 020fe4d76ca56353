"""The heads of a release: one encoder and one forward pass, whose raw outputs stand side by side, head by head."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shared_model.output import Floats, OutputSpec

#: Name of the only head of a release that names none.
DEFAULT_HEAD = "default"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,46}[a-z0-9])?")


def check_name(name: str) -> None:
    """Raises: ValueError for a name that a head cannot have."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"head name {name!r}: use 1 to 48 of a-z, 0-9, '-' and '_', the last two inside only")


@dataclass(frozen=True)
class HeadSpec:
    """One named output contract. Raises: ValueError for a bad name."""

    name: str
    output: OutputSpec

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True)
class Heads:
    """All heads of a release, in order. Answers of the first are where a release with one head has its own; those of
    the others are under their names. Raises: ValueError for equal names, or without a head."""

    specs: tuple[HeadSpec, ...]

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.specs]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"heads {', '.join(names) or 'none'}: at least one is needed, each with a name of its own")

    @classmethod
    def of(cls, output: OutputSpec, name: str = DEFAULT_HEAD, further: Iterable[HeadSpec] = ()) -> "Heads":
        return cls((HeadSpec(name, output), *further))

    @property
    def first(self) -> HeadSpec:
        return self.specs[0]

    @property
    def further(self) -> tuple[HeadSpec, ...]:
        return self.specs[1:]

    @cached_property
    def width(self) -> int:
        """Numbers per text, of all heads."""
        return sum(spec.output.width for spec in self.specs)

    @cached_property
    def columns(self) -> tuple[slice, ...]:
        """The place of each head's numbers among those of a text."""
        ends = np.cumsum([spec.output.width for spec in self.specs]).tolist()
        return tuple(slice(end - spec.output.width, end) for spec, end in zip(self.specs, ends, strict=True))

    @cached_property
    def uncalibrated(self) -> "Heads":
        """The same at temperature 1, none of which abstains."""
        return Heads(tuple(HeadSpec(spec.name, spec.output.uncalibrated) for spec in self.specs))

    def split(self, numbers: Floats) -> list[Floats]:
        """Each head's part of raw outputs or scores (…, width): views (…, width of the head), in order."""
        return [numbers[..., columns] for columns in self.columns]

    def scores(self, raw: Floats) -> Floats:
        """Scores (rows, width) from an engine's raw outputs, each head's by its own contract."""
        scores = np.divide(raw, self._temperatures, dtype=np.float32)
        for spec, columns in zip(self.specs, self.columns, strict=True):
            spec.output.score(scores[..., columns])
        return scores

    @cached_property
    def _temperatures(self) -> Floats:
        """Of each number, (width,): one division for all heads."""
        return np.repeat(
            [spec.output.temperature for spec in self.specs], [spec.output.width for spec in self.specs]
        ).astype(np.float32)

    def abstained(self, scores: Floats) -> NDArray[np.bool_]:
        """Whether each row's answer of each head abstains, (rows, heads). `scores`: all of each row (rows, width)."""
        parts = zip(self.specs, self.split(scores), strict=True)
        return np.stack([spec.output.abstained(part) for spec, part in parts], axis=-1)

    def kept(self, k: int) -> tuple[slice, ...]:
        """The place of each head's numbers among those that `best` keeps."""
        widths = [spec.output.kept(k) for spec in self.specs]
        ends = np.cumsum(widths).tolist()
        return tuple(slice(end - width, end) for width, end in zip(widths, ends, strict=True))

    def best(self, scores: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
        """`OutputSpec.best` of each head, side by side: (indices within the head, scores)."""
        if len(self.specs) == 1:
            return self.first.output.best(scores, k)
        found = [spec.output.best(part, k) for spec, part in zip(self.specs, self.split(scores), strict=True)]
        indices, values = zip(*found, strict=True)
        return np.concatenate(indices, axis=-1), np.concatenate(values, axis=-1)
