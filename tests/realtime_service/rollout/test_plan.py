"""The steps of a replica towards the release pointer, as a table and for any history; the release of each caller."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.models.registry import Model, Serving
from realtime_service.rollout.plan import Step, plan
from shared_model.encoding import Encoder, InputSpec
from shared_model.errors import UnknownRelease
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.pointer import Pointer
from tests.realtime_service.rollout import tiny_releases

OLD, NEW, TRIAL = "old", "new", "trial"


@pytest.mark.parametrize(
    ("pointer", "loaded", "failed", "expected"),
    [
        # nothing to do
        (Pointer(1, OLD), {OLD}, set(), Step(OLD, "", 0.0, "")),
        # a promotion: load first, switch when it is loaded, and keep the old one for a rollback
        (Pointer(2, NEW, OLD), {OLD}, set(), Step(OLD, "", 0.0, NEW)),
        (Pointer(2, NEW, OLD), {OLD, NEW}, set(), Step(NEW, "", 0.0, "", keep=OLD)),
        # a rollback drops what it left
        (Pointer(3, OLD), {OLD, NEW}, set(), Step(OLD, "", 0.0, "")),
        # it failed: the old one stays
        (Pointer(2, NEW, OLD), {OLD}, {NEW}, Step(OLD, "", 0.0, "")),
        # a canary takes its share once it is loaded
        (Pointer(2, OLD, "", TRIAL, 0.3), {OLD}, set(), Step(OLD, "", 0.0, TRIAL)),
        (Pointer(2, OLD, "", TRIAL, 0.3), {OLD, TRIAL}, set(), Step(OLD, TRIAL, 0.3, "")),
        (Pointer(2, OLD, "", TRIAL, 0.3), {OLD}, {TRIAL}, Step(OLD, "", 0.0, "")),
        # a canary that is promoted is loaded already
        (Pointer(3, TRIAL, OLD), {OLD, TRIAL}, set(), Step(TRIAL, "", 0.0, "", keep=OLD)),
        # of two promotions, only the release before the second is kept: a rollback would return to it
        (Pointer(3, TRIAL, NEW), {OLD, NEW, TRIAL}, set(), Step(TRIAL, "", 0.0, "", keep=NEW)),
        # a load retires the kept release; a loaded canary does not
        (Pointer(4, NEW, TRIAL, "next", 0.1), {NEW, TRIAL}, set(), Step(NEW, "", 0.0, "next")),
        (Pointer(4, NEW, TRIAL, "next", 0.1), {NEW, TRIAL, "next"}, set(), Step(NEW, "next", 0.1, "", keep=TRIAL)),
        (Pointer(4, NEW, TRIAL, "next", 0.1), {NEW, TRIAL}, {"next"}, Step(NEW, "", 0.0, "", keep=TRIAL)),
        # both are to be loaded: the active one first, and a failure of one does not delay the other
        (Pointer(4, NEW, OLD, TRIAL, 0.1), {OLD}, set(), Step(OLD, "", 0.0, NEW)),
        (Pointer(4, NEW, OLD, TRIAL, 0.1), {OLD}, {NEW}, Step(OLD, "", 0.0, TRIAL)),
        (Pointer(4, NEW, OLD, TRIAL, 0.1), {OLD, TRIAL}, {NEW}, Step(OLD, TRIAL, 0.1, "")),
        # the release that answers here is the canary elsewhere: it cannot be its own canary
        (Pointer(5, NEW, "", OLD, 0.1), {OLD}, {NEW}, Step(OLD, "", 0.0, "")),
    ],
)
def test_the_plan(pointer: Pointer, loaded: set[str], failed: set[str], expected: Step) -> None:
    assert plan(pointer, loaded, OLD, failed) == expected


def test_an_expired_release_is_in_no_step() -> None:
    assert plan(Pointer(2, NEW, OLD), {OLD, NEW}, NEW, set(), expired={OLD}) == Step(NEW, "", 0.0, "")


names = st.sampled_from(["a", "b", "c", "d"])
pointers = st.builds(
    Pointer,
    version=st.integers(1, 9),
    active=names,
    previous=names | st.just(""),
    canary=names | st.just(""),
    weight=st.floats(0, 0.99),
)


@given(st.lists(pointers, min_size=1, max_size=8), st.sets(names))
def test_any_history_ends_where_the_pointer_says_and_nothing_unfit_ever_answers(
    history: list[Pointer], unfit: set[str]
) -> None:
    loaded, active = {"first"}, "first"
    for pointer in history:
        failed: set[str] = set()
        for _ in range(4):
            step = plan(pointer, loaded, active, failed)
            assert step.active in loaded
            assert step.canary in loaded | {""}
            assert {step.active, step.canary}.isdisjoint(unfit)
            assert step.load not in loaded | failed
            assert step.keep in {pointer.previous, ""} - {step.active, step.canary} | {""}
            loaded, active = {step.active, step.canary, step.keep} & loaded, step.active
            (failed if step.load in unfit else loaded).update({step.load} - {""})
        assert step.load == ""
        assert pointer.active in unfit or active == pointer.active
        fit_canary = pointer.canary and pointer.canary not in unfit | {active}
        assert (step.canary, step.weight) == ((pointer.canary, pointer.weight) if fit_canary else ("", 0.0))


def serving(weight: float = 0.0, canary: str = TRIAL) -> Serving:
    output = Heads.of(OutputSpec(OutputKind.EMBEDDING, (), 2))
    encoder = Encoder(tiny_releases.tokenizer(), InputSpec(8), "any")
    models = {it: Model(it, output, encoder, {}) for it in (OLD, TRIAL)}
    return Serving(models, OLD, canary if weight else "", weight)


@given(st.text(max_size=30), st.floats(0.01, 0.98))
def test_a_caller_stays_with_its_release_and_moves_only_towards_the_canary_as_it_grows(
    caller: str, weight: float
) -> None:
    chosen = serving(weight).pick("", caller).release
    assert serving(weight).pick("", caller).release == chosen
    if chosen == TRIAL:
        assert serving(weight + 0.01).pick("", caller).release == TRIAL


def test_the_canary_answers_its_share_of_callers() -> None:
    callers = [serving(0.3).pick("", str(number)).release for number in range(2000)]
    assert callers.count(TRIAL) / 2000 == pytest.approx(0.3, abs=0.04)


def test_the_caller_matters_only_with_a_canary_and_without_one_the_active_release_answers() -> None:
    assert serving().pick("", "anybody").release == OLD
    assert serving(0.98).pick(OLD, "anybody").release == OLD
    assert serving(0.98).pick("", None).release == OLD


def test_a_pinned_release_is_served_or_refused_never_replaced() -> None:
    assert serving().pick(TRIAL, "anybody").release == TRIAL
    with pytest.raises(UnknownRelease, match="release: 'gone' is not served here; this is old"):
        serving().pick("gone", "anybody")
