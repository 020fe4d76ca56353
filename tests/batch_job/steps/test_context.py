"""The session of a step whose JVM goes away, as when `score` is ended by SIGTERM."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from batch_job.run_record import Runtime
from batch_job.spark import session
from batch_job.steps import context
from shared_model.errors import WorkersLost


@pytest.mark.parametrize(
    "at_its_stop", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")]
)
def test_a_jvm_that_is_gone_hides_no_reason(at_its_stop: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise at_its_stop

    def lost(*_: Any) -> None:
        raise WorkersLost("Spark was stopped or killed")

    monkeypatch.setattr(session, "start", lambda name: SimpleNamespace(stop=stop))
    monkeypatch.setattr(session, "check_workers", lost)
    step: Any = SimpleNamespace(nightly=SimpleNamespace(nightly_idle=False), state=None)
    with (
        pytest.raises(WorkersLost, match="Spark was stopped or killed"),
        context.open_session(step, "any", "any", Runtime("", "")),
    ):
        raise AssertionError
