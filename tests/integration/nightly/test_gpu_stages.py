"""Whatever scores in a night takes the GPU of its executor whole; whatever reads, judges or writes does not."""

from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.resource.requests import TaskResourceRequest
from pyspark.sql.classic.dataframe import DataFrame

from batch_job.checks import agreement
from batch_job.deferred import answering
from batch_job.inputs import judging
from batch_job.scoring import shard_task
from batch_job.shards import quarantining
from batch_job.spark import gpus
from batch_job.steps import score
from tests.batch_job.conftest import DAY
from tests.batch_job.deferred import deferring
from tests.integration.nightly.conftest import House

#: Stands for the profile, which a Spark of one process refuses.
WHOLE_GPU = Mock(taskResources={"cpus": TaskResourceRequest("cpus", 1.0)})


def test_stages_that_score_take_the_whole_gpu_and_no_others(
    house: House, in_this_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles: dict[Any, object] = {}
    map_in_arrow = DataFrame.mapInArrow

    def noted(frame: DataFrame, function: "partial[Any]", schema: str, profile: object = None) -> DataFrame:
        profiles[function.func] = profile
        return map_in_arrow(frame, function, schema)

    monkeypatch.setattr(gpus, "scoring_profile", lambda spark: WHOLE_GPU)
    monkeypatch.setattr(DataFrame, "mapInArrow", noted)
    deferring.submit_to(house.state.redis_url, "I forgot my passcode")
    assert score.score(DAY, house.path).drained == 1
    scoring = dict.fromkeys([shard_task.score_shards, agreement._answer, answering.score_texts], WHOLE_GPU)
    assert profiles == {**scoring, judging.judge_lines: None, quarantining.write_quarantine: None}
