"""Encodes results of scoring.v1 from scores, whether a device computed them now or a night has published them."""

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from protos.scoring.v1.scoring_pb2 import HeadResult, Label, Result
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from realtime_service.models.wire_format import field, tag
from shared_model.heads import Heads, HeadSpec
from shared_model.output import HeadAnswer

#: A head's scores of one text.
AnyHeadAnswer = HeadAnswer | PublishedScore | PublishedHead

#: A score as protobuf encodes a float.
_SCORE = struct.Struct("<f")
#: Of an entry of Result.heads, and of its key and value, whose numbers are the same for any map.
_ENTRY, _KEY, _VALUE = tag(Result.HEADS_FIELD_NUMBER), tag(1), tag(2)
_ABSTAINED = HeadResult(abstained=True).SerializeToString()


class TextScores(NamedTuple):
    """The scores of one text: of each head of its release, in order, at least the best `k`, which an answer has.
    `tokens`, `truncated`: the part of the text that the model read."""

    encoder: "ResultEncoder"
    heads: Sequence[AnyHeadAnswer]
    tokens: int
    truncated: bool
    k: int

    def encoded(self) -> bytes:
        """A Result."""
        return self.encoder.encoded(self)

    @property
    def best_label(self) -> str:
        """That of the first head, whose output is ranked."""
        return self.encoder.heads.first.output.names[self.heads[0].labels[0]]


class ResultEncoder:
    """Of one release: its labels are encoded once."""

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self._first = _Head.of(heads.first, Result)
        self._further = [_Head.of(spec, HeadResult) for spec in heads.further]

    def published(self, score: PublishedScore, k: int) -> TextScores:
        """`k`: labels to keep of each head whose output is ranked."""
        heads: list[AnyHeadAnswer] = [score]
        if self._further:
            heads += score.heads
        return TextScores(self, heads, score.tokens, score.truncated, k)

    def encoded(self, text: TextScores) -> bytes:
        first, *others = text.heads
        encoded = _facts(text.tokens, text.truncated, first.abstained) + self._first.encoded(first, text.k)
        for head, scores in zip(self._further, others, strict=True):
            value = head.encoded(scores, text.k)
            if scores.abstained:
                value += _ABSTAINED
            encoded += field(_ENTRY, head.key + field(_VALUE, value))
        return encoded


class _Head(NamedTuple):
    """`message`: its scores are in one. `key`: as an entry of Result.heads has it; `labels`: what `_label` returns for
    each of its outputs, none for an embedding; `ranked`: as in OutputSpec."""

    message: type[Result] | type[HeadResult]
    key: bytes
    labels: Sequence[bytes]
    ranked: bool

    @classmethod
    def of(cls, spec: HeadSpec, message: type[Result] | type[HeadResult]) -> "_Head":
        labels = [_label(it) for it in spec.output.names]
        return cls(message, field(_KEY, spec.name.encode()), labels, spec.output.ranked)

    def encoded(self, scores: AnyHeadAnswer, k: int) -> bytes:
        """The message, as far as the scores are it."""
        message, _, labels, ranked = self
        if not labels:
            return message(vector=scores.scores).SerializeToString()
        kept, encoded = k if ranked else None, b""
        for place, score in zip(scores.labels[:kept], scores.scores[:kept], strict=True):
            encoded += labels[place] + _SCORE.pack(score)
        return encoded


def _label(name: str) -> bytes:
    """A HeadResult with one label, but for the label's score at its end. Several in a row, each with a score, are a
    HeadResult, or a Result, with these labels: the field has the same number in both."""
    # Protobuf leaves a score of 0 out.
    return HeadResult(labels=[Label(name=name, score=1.0)]).SerializeToString()[: -_SCORE.size]


@functools.lru_cache(maxsize=4096)
def _facts(tokens: int, truncated: bool, abstained: bool) -> bytes:
    return Result(tokens=tokens, truncated=truncated, abstained=abstained).SerializeToString()
