"""Heads for property-based tests."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec

_NAMES = st.from_regex(r"[a-z0-9](?:[a-z0-9_-]{0,6}[a-z0-9])?", fullmatch=True)
_LABELS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)


@st.composite
def _outputs(draw: DrawFn) -> OutputSpec:
    kind = draw(st.sampled_from(OutputKind))
    least = 2 if kind is OutputKind.SINGLE_LABEL else 1
    names = tuple(draw(st.lists(_LABELS, min_size=least, max_size=9, unique=True)))
    spec = OutputSpec(kind, () if kind is OutputKind.EMBEDDING else names, len(names))
    if not spec.ranked:
        return spec
    on = draw(st.sets(st.sampled_from(names), max_size=len(names) - 1)) if kind is OutputKind.SINGLE_LABEL else ()
    below = draw(st.none() | st.floats(0.01, 1))
    return replace(spec, temperature=draw(st.floats(0.1, 10)), abstain_below=below, abstain_on=tuple(sorted(on)))


@st.composite
def heads_of_any_kind(draw: DrawFn) -> Heads:
    """One to four heads of any kinds."""
    names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
    return Heads(tuple(HeadSpec(name, draw(_outputs())) for name in names))


def a_seed() -> SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)
