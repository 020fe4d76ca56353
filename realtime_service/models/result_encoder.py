"""Makes the results of scoring.v1 from scores, whether a device computed them now or a night has published them."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from protos.scoring.v1.scoring_pb2 import HeadResult, Label, Result
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from shared_model.heads import Heads, HeadSpec
from shared_model.output import Kept

#: A score as protobuf encodes a float.
_SCORE = struct.Struct("<f")


#: A head's scores of one text.
HeadScores = Kept | PublishedScore | PublishedHead


class TextScores(NamedTuple):
    """The scores of one text: of each head of its release, in order, at least the best `k`. `tokens`, `truncated`: the
    part of the text that the model read."""

    encoder: "ResultEncoder"
    heads: Sequence[HeadScores]
    tokens: int
    truncated: bool
    k: int

    def fill(self, result: Result) -> None:
        """Set all of an empty result."""
        self.encoder.fill(result, self)

    @property
    def best_label(self) -> str:
        """That of the first head, whose output is ranked."""
        return self.encoder.heads.first.output.names[self.heads[0].labels[0]]


class ResultEncoder:
    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self._first, *self._further = map(_Head.of, heads.specs)

    def published(self, score: PublishedScore, k: int) -> TextScores:
        """`k`: labels to keep of each head whose output is ranked."""
        heads: list[HeadScores] = [score]
        if self._further:
            heads += score.heads
        return TextScores(self, heads, score.tokens, score.truncated, k)

    def fill(self, result: Result, text: TextScores) -> None:
        result.tokens, result.truncated = text.tokens, text.truncated
        first, *others = text.heads
        self._first.fill(result, first, text.k)
        for head, scores in zip(self._further, others, strict=True):
            head.fill(result.heads[head.name], scores, text.k)


class _Head(NamedTuple):
    """`labels`: what `_label` returns for each of its outputs, none for an embedding; `ranked`: as in OutputSpec."""

    name: str
    labels: Sequence[bytes]
    ranked: bool

    @classmethod
    def of(cls, spec: HeadSpec) -> "_Head":
        return cls(spec.name, [_label(it) for it in spec.output.names], spec.output.ranked)

    def fill(self, result: Result | HeadResult, scores: HeadScores, k: int) -> None:
        _, labels, ranked = self
        if scores.abstained:
            result.abstained = True
        if not labels:
            result.vector.extend(scores.scores)
            return
        kept = k if ranked else None
        # Protobuf reads labels in less time than Python takes to set them.
        encoded = b""
        for place, score in zip(scores.labels[:kept], scores.scores[:kept], strict=True):
            encoded += labels[place] + _SCORE.pack(score)
        result.MergeFromString(encoded)


def _label(name: str) -> bytes:
    """A HeadResult with one label, in protobuf's encoding, but for the label's score at its end. Several in a row, each
    with a score, are a HeadResult, or a Result, with these labels."""
    # Protobuf leaves a score of 0 out.
    return HeadResult(labels=[Label(name=name, score=1.0)]).SerializeToString()[: -_SCORE.size]
