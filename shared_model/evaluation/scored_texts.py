"""Texts that fp32, the reference, has scored: each once, whichever heads are judged on it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import Encoder, Encoding, Text
from shared_model.engine import Engine
from shared_model.evaluation import benchmark
from shared_model.evaluation.agreement import RULES
from shared_model.evaluation.corpora import GateTexts
from shared_model.evaluation.significance import MIN_CLEAR
from shared_model.heads import Heads, HeadSpec
from shared_model.output import Floats


class ScoredTexts:
    """`encodings` and `scores` (texts, width of all heads) of the texts asked for so far. `what`: title of the progress
    bar."""

    def __init__(self, encoder: Encoder, engine: Engine, heads: Heads, what: str) -> None:
        self.encodings: list[Encoding] = []
        self.scores: Floats = np.empty((0, heads.width), np.float32)
        self._encoder = encoder
        self._engine = engine
        self._heads = heads
        self._what = what
        self._rows: dict[Text, int] = {}

    def chosen(self, spec: HeadSpec, columns: slice, texts: GateTexts) -> tuple[list[GateTexts], NDArray[np.int64]]:
        """The sets that one head is compared on, `texts` and as many of its reserve as it takes to have MIN_CLEAR clear
        ones; and the rows of their texts. `columns`: of the head."""
        clear, rows, compared = RULES[spec.output.kind].clear, np.empty(0, np.int64), list[GateTexts]()
        for found in (texts, *texts.reserve):
            missing = MIN_CLEAR - int(clear(self.scores[rows, columns]).sum())
            if missing <= 0:
                break
            more = self.rows_of(found.texts)
            taken = len(more)
            if compared:
                # The first texts that hold the missing clear ones; all if they hold fewer.
                held = np.cumsum(clear(self.scores[more, columns]))
                taken = min(taken, int(np.searchsorted(held, missing)) + 1)
            rows = np.concatenate([rows, more[:taken]])
            compared.append(found.first(taken) if compared else found)
        return compared, rows

    def rows_of(self, texts: Sequence[Text]) -> NDArray[np.int64]:
        """The row of each text; new ones are scored. Raises: as `benchmark.score_all`."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._rows]:
            encoded = self._encoder.encode_many(new)
            scores = benchmark.score_all(self._engine, self._heads, encoded, self._what)
            self._rows |= {text: len(self.encodings) + place for place, text in enumerate(new)}
            self.encodings += encoded
            self.scores = np.concatenate([self.scores, scores])
        return np.array([self._rows[text] for text in texts], np.int64)
