"""Several heads by night and by day: a text has one answer, from a device, as published and as deferred work."""

from pathlib import Path

import pyarrow as pa
import pytest

from batch_job.deferred import draining
from batch_job.scoring import rows, windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.steps import publish
from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service.execution.device import Computed
from realtime_service.models import registry
from realtime_service.routing.policy import Decision
from realtime_service.serving import answer
from realtime_service.serving.score_response import score_response
from shared_model.deferred import Claimed
from shared_model.encoding import collate
from shared_model.heads import HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.store import Release, Store
from shared_model.types import Device, Precision, ServingPath
from tests.realtime_service.rollout import tiny_releases

TEXTS = ["where is my card", "card", "hello"]
OUTPUTS = {
    "mood": OutputSpec(OutputKind.MULTI_LABEL, ("angry", "glad", "sad"), 3, temperature=0.1, abstain_below=0.52),
    "stars": OutputSpec(OutputKind.REGRESSION, ("stars", "speed"), 2),
    "vector": OutputSpec(OutputKind.EMBEDDING, (), 4),
    "scope": OutputSpec(OutputKind.SINGLE_LABEL, ("in", "out"), 2, abstain_on=("out",)),
}
HERE = Decision(ServingPath.LATENCY, "here", "because")
TOP_K = 2


@pytest.fixture
def release(tmp_path: Path) -> Release:
    further = tuple(HeadSpec(name, output) for name, output in OUTPUTS.items())
    return tiny_releases.seal(Store(tmp_path), "five", output=tiny_releases.LABELLED, further=further)


def test_a_text_has_the_same_answer_of_every_head_online_published_and_deferred(
    release: Release, tmp_path: Path
) -> None:
    engine, encoder = release.engine(Precision.INT8, Device.CPU, 1), release.encoder()
    by_night = Model(release.id, release.heads, encoder, engine)
    options = ScoringOptions(str(tmp_path), release.id, Device.CPU, batch_rows=64, batch_tokens=2048)
    batch = pa.record_batch({"id": [str(number) for number in range(len(TEXTS))], "text": TEXTS})
    [window] = windows.score_windows(iter([batch]), lambda it: it.column("text").to_pylist(), by_night, options)
    scored = pa.Table.from_batches([rows.score_rows(window, by_night)])

    by_day = registry.Model(release.id, release.heads, encoder, {})
    encodings = encoder.encode_many(TEXTS)
    raw = [engine.score(collate([encoding])) for encoding in encodings]
    engine.close()
    ran = [Computed(release.heads.scores(one)[0], Precision.INT8, 1, 0.0, 0.0) for one in raw]
    online = answer.computed(by_day, encodings, ran, HERE, TOP_K)
    published = answer.published(by_day, [score for _, score in publish.scores_of(scored, release.heads)], HERE, TOP_K)
    request = ScoreRequest(texts=TEXTS, top_k=TOP_K)
    item = Claimed(b"1", "later", DeferredWork(request=request))
    later = draining._response(item, scored.to_pylist(), release.heads)

    results = ScoreResponse.FromString(score_response(online, "now")).results
    assert [sorted(result.heads) for result in results] == [sorted(OUTPUTS)] * len(TEXTS)
    assert list(ScoreResponse.FromString(score_response(published, "now")).results) == list(results)
    assert list(later.results) == list(results)
    assert [result.heads["scope"].abstained for result in results] == [
        result.heads["scope"].labels[0].name == "out" for result in results
    ]
    assert any(head.abstained for result in results for head in result.heads.values())
