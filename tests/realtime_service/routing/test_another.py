"""A call that its first replica did not answer: it keeps its path, goes to each replica once, and must be in time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from realtime_service.routing.policy import Decision, RoutedRequest, another
from realtime_service.routing.snapshot import Option, Sent, Snapshot
from shared_model.types import Priority, ServingPath

names = st.sampled_from("abcdef")
paths = st.sampled_from([ServingPath.LATENCY, ServingPath.DYNAMIC])
sent = st.builds(Sent, ahead=st.floats(0, 0.1))
found = st.builds(Option, names, paths, st.floats(0, 0.2), st.floats(0, 0.01), st.floats(0, 2), sent)
REQUEST = RoutedRequest(1, Priority.UNSPECIFIED, None, None, "r-1", here={})


@given(
    st.lists(found, max_size=8, unique_by=lambda option: option.replica),
    st.frozensets(names),
    st.none() | st.floats(0, 0.3),
    st.integers(1, 64),
    st.floats(0, 0.999),
)
def test_the_path_stays_and_no_replica_is_asked_twice_or_too_late(
    options: list[Option], tried: frozenset[str], remaining_budget: float | None, texts: int, draw: float
) -> None:
    by_path = {
        ("r-1", path): tuple(it for it in options if it.path is path)
        for path in (ServingPath.LATENCY, ServingPath.DYNAMIC)
    }
    first = Decision(ServingPath.DYNAMIC, "first", "because")
    request = replace(REQUEST, texts=texts, remaining_budget=remaining_budget)
    chosen = another(first, request, Snapshot("here", options=by_path), tried, draw)
    fit = {
        it.replica
        for it in by_path["r-1", ServingPath.DYNAMIC]
        if it.replica not in tried and (remaining_budget is None or it.predicted(texts) <= remaining_budget)
    }
    if chosen is None:
        assert not fit
    else:
        assert chosen.replica in fit
        assert (chosen.path, chosen.reason) == (first.path, first.reason)


def test_no_replica_with_another_release_is_asked() -> None:
    option = Option("a", ServingPath.DYNAMIC, 0.0, 0.0, 0.0)
    snapshot = Snapshot("here", options={("r-2", ServingPath.DYNAMIC): (option,)})
    assert another(Decision(ServingPath.DYNAMIC, "first", ""), REQUEST, snapshot, (), 0.0) is None
