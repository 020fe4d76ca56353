"""The models that stay loaded beside the default one: by memory, last use, and calls in flight."""

import math

from hypothesis import given
from hypothesis import strategies as st

from realtime_service.rollout.residency import Residency, Use

#: Busy or not, loaded or not: what is busy is loaded.
states = st.sampled_from([(True, True), (False, True), (False, False)])
uses = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(
        lambda size, last, state: Use(size, last, *state),
        st.integers(1, 50),
        st.just(-math.inf) | st.floats(0, 100),
        states,
    ),
)


@given(uses, st.integers(1, 120))
def test_a_model_with_calls_in_flight_stays_and_the_others_fit_in_the_memory_that_is_left(
    found: dict[str, Use], most: int
) -> None:
    kept = Residency(None, most).loaded(found)
    busy = {name for name, use in found.items() if use.busy}
    assert busy <= kept
    beside = sum(found[name].size for name in kept - busy)
    assert not beside or beside + sum(found[name].size for name in busy) <= most


@given(uses, st.integers(1, 120))
def test_a_model_that_is_left_out_fits_only_in_place_of_more_recently_used_ones(
    found: dict[str, Use], most: int
) -> None:
    kept = Residency(None, most).loaded(found)
    for name in found.keys() - kept:
        sooner = [it for it in kept if found[it].busy or found[it].last >= found[name].last]
        assert found[name].size + sum(found[it].size for it in sooner) > most


def test_of_models_that_were_never_asked_for_those_that_are_loaded_stay() -> None:
    found = {"a": Use(5, -math.inf), "b": Use(5, -math.inf, loaded=True)}
    assert Residency(None, 5).loaded(found) == {"b"}


def test_models_that_the_settings_name_are_all_loaded() -> None:
    named = Residency.of("a, b", 0.001)
    assert (named.serves("a"), named.serves("c")) == (True, False)
    assert named.loaded({"a": Use(10**9, 0.0)}) == {"a"}
    assert Residency.of("", 1.0) == Residency(None, 1e6)
