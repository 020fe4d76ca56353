"""Models that share a device: one caller's flood of one model delays its texts for another by one batch at most."""

from hypothesis import given
from hypothesis import strategies as st

from realtime_service.identity import of_model
from realtime_service.scheduling.queue import Task
from shared_model.types import ServingPath
from tests.realtime_service.scheduling.test_fair_queueing import LATE, OneLane

CALLER = "token:back-office"
#: Model names and the number of each one's release in the simulation.
MODELS = {"": 0, "side": 1}

lanes = st.sampled_from([ServingPath.LATENCY, ServingPath.DYNAMIC, ServingPath.THROUGHPUT])
#: Of a text: model, timeout, tokens.
texts = st.tuples(
    st.sampled_from(list(MODELS)), st.none() | st.sampled_from([LATE, 10 * LATE]), st.sampled_from([16, 40])
)


def text(lane: OneLane, model: str, timeout: float | None = None, tokens: int = 16) -> Task:
    task = lane.task(lane.path, timeout, tokens, release=MODELS[model])
    task.caller = of_model(CALLER, model)
    return task


@given(lanes, st.lists(texts, min_size=2, max_size=80), st.sampled_from(list(MODELS)))
def test_no_batch_mixes_models_and_neither_model_waits_for_a_flood_of_the_other(
    path: ServingPath, flood: list[tuple[str, float | None, int]], rare: str
) -> None:
    lane = OneLane(path)
    for kind in flood:
        lane.scheduler.admit([text(lane, *kind)], lane.now)
    # However long the flood has been served alone.
    lane.step()
    asked = text(lane, rare, LATE)
    lane.scheduler.admit([asked], lane.now)
    led_by_the_other, alone = 0, rare not in {model for model, *_ in flood}
    while asked.queued:
        batch = lane.step()
        assert batch
        models = {task.latency for task in batch.tasks}
        assert len(models) == 1
        led_by_the_other += alone and models != {asked.latency}
    assert led_by_the_other <= 1
    while lane.scheduler.busy:
        batch = lane.step()
        assert batch
        assert len({task.latency for task in batch.tasks}) == 1


@given(lanes, st.integers(4, 30))
def test_both_models_of_one_caller_get_equal_parts_of_a_device_that_has_too_much_to_do(
    path: ServingPath, count: int
) -> None:
    """Within the batches of one text more, whichever model is asked more urgently."""
    lane = OneLane(path)
    for _ in range(count):
        lane.scheduler.admit([text(lane, "", LATE)], lane.now)
        lane.scheduler.admit([text(lane, "side", 10 * LATE)], lane.now)
    served = {model: 0 for model in MODELS}
    longest = 0
    while all(served[model] < count for model in MODELS):
        batch = lane.step()
        assert batch
        (model,) = {task.caller for task in batch.tasks}
        served["side" if model.startswith("model:") else ""] += len(batch.tasks)
        longest = max(longest, len(batch.tasks))
        assert abs(served[""] - served["side"]) <= longest
