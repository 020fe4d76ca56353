"""A few seconds of each attack, on a service with the default release: `make attack` is the whole."""

from collections.abc import Iterator

import pytest

from tests.attack import observation, oracles
from tests.attack.disturbers import DISTURBERS
from tests.attack.observation import Target

#: Of each attack; the fuzzers send at least so many messages.
SECONDS = 2.0
INPUTS = 1_000
#: Those whose memory is that of their messages, whatever the machine's speed.
LARGE = ("long_texts", "large_messages")

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with observation.target() as target:
        yield target


@pytest.mark.parametrize("name", DISTURBERS)
def test_an_attack_neither_blocks_the_event_loop_nor_fails_the_server(name: str, target: Target) -> None:
    """How fast the good caller is served depends on the machine; `make attack` judges that."""
    seen = observation.observe(target, SECONDS, observation.attack(name, INPUTS))
    assert seen.wrong == ()
    if seen.callback_ms > oracles.CALLBACK_MS:
        # A host that runs at half its speed for a moment doubles the CPU time of a callback; an attack does it again.
        seen = observation.observe(target, SECONDS, observation.attack(name, INPUTS))
    assert seen.sent > 0
    assert list(oracles.steady(seen)) == []
    assert target.running.process.poll() is None
    if name in LARGE:
        assert seen.growth_mb <= 1.5 * oracles.GROWTH_MB, "valid calls, for which a third is added, were not run"
