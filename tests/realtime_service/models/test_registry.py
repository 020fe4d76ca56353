"""The release that answers: one of the model that the request names, and of no other."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.models.registry import Model, Roles, Serving
from shared_model.errors import BadInput, UnknownRelease
from shared_model.releases.pointers import name_of

NAMES = ("main", "side", "third")
IDS = {name: [f"{name}-{digit * 12}" for digit in "abc"] for name in NAMES}
ALL = [it for several in IDS.values() for it in several]


@st.composite
def servings(draw: st.DrawFn) -> Serving:
    def roles(name: str) -> Roles:
        active, canary = draw(st.permutations(IDS[name]))[:2]
        return Roles(active, *((canary, 0.5) if draw(st.booleans()) else ("", 0.0)))

    default, others = roles("main"), {name: roles(name) for name in draw(st.sets(st.sampled_from(NAMES[1:])))}
    loaded = {it: Model(it, *cast(Any, (None, None, {}))) for name in NAMES for it in IDS[name]}
    return Serving(loaded, default.active, default.canary, default.weight, others)


@given(
    servings(),
    st.sampled_from(("", *NAMES)),
    st.sampled_from(("", *(it for several in IDS.values() for it in several))),
    st.text(max_size=5),
)
def test_a_request_gets_a_release_of_its_model_or_none(serving: Serving, name: str, pinned: str, caller: str) -> None:
    known = name in ("", *serving.by_name)
    try:
        chosen = serving.choose(pinned, caller, name)
    except UnknownRelease:
        assert not known
        return
    except BadInput:
        assert name_of(pinned) != (name or "main")
        return
    assert known
    assert not pinned or chosen == pinned
    # A pinned release of a model that is unknown here is looked for at other replicas.
    assert name_of(chosen) == (name or "main") or name_of(chosen) not in serving.by_name


def test_a_canary_of_another_name_answers_for_the_default_model() -> None:
    """As pointers of former versions have it."""
    main, other = IDS["main"][0], IDS["side"][0]
    serving = Serving({}, main, other, 0.5)
    assert {serving.choose("", str(number)) for number in range(50)} == {main, other}
    assert serving.choose(other, None) == other
    with pytest.raises(UnknownRelease, match="model: 'side' is not served; there are: main"):
        serving.choose("", None, "side")
