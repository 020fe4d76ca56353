"""Files of a build and a service are their user's alone, whatever umask the shell has, and lie in the state folder:
HOME stays empty.

Those of a night are looked at where a night runs: `stack/test_stopping.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from realtime_service.client import Client
from shared_model.releases.store import Store
from tests.private_files import open_to_others
from tests.realtime_service.conftest import start_service
from tests.shared_model import tiny_models

pytestmark = pytest.mark.heavy

#: A random model passes its gate, whatever it answers.
LAX = {"TANDEM_GATE_MIN_AGREEMENT": "0.01", "TANDEM_GATE_LATENCY_MS": "10000", "TANDEM_GATE_BATCH_MS": "10000"}


def test_no_file_is_readable_by_others_and_none_lies_outside_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, state, model = tmp_path / "home", tmp_path / "state", tiny_models.make(tmp_path / "model", "bert")
    home.mkdir()
    for name in os.environ:
        if name.startswith(("XDG_", "NNCF_", "PYTEST_")):
            monkeypatch.delenv(name)
    for name in ("TANDEM_REDIS_URL", "REDIS_URL", "TANDEM_RELEASES"):
        monkeypatch.delenv(name, raising=False)
    environment = {"TANDEM_STATE": str(state), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "", **LAX}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*command: str) -> None:
        ended = subprocess.run(
            [sys.executable, "-m", *command], umask=0o022, capture_output=True, text=True, timeout=200, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert list(home.rglob("*")) == []

    run("shared_model", "build", "--model", str(model), "--name", "tiny", "--max-tokens", "16")
    run("shared_model", "messages", "--count", "40", "--days", "1")
    former = os.umask(0o022)
    try:
        service = start_service(state, state / "releases")
    finally:
        os.umask(former)
    with Client(service.address) as client:
        assert client.score("where is my card").release in Store(state / "releases").ids()
        client.submit("later", "where is my card")
        assert open_to_others(state) == []
    assert service.stop() == 0
    assert list(home.rglob("*")) == []
    written = {it.relative_to(state).parts[0] for it in state.rglob("*") if it.is_file()}
    assert written >= {"keys", "releases", "messages", "redis", "compiled"}


def test_a_state_folder_that_others_may_open_is_named_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    command = [sys.executable, "-m", "shared_model", "list"]
    environment = {**os.environ, "TANDEM_STATE": str(state), "TANDEM_REDIS_URL": "redis://127.0.0.1:1"}

    def complaint() -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr

    assert complaint() == (
        f"warning: TANDEM_STATE={state}: other users may open it (mode 755), and it holds texts and keys; "
        f"chmod 700 {state}\n"
    )
    state.chmod(0o700)
    assert complaint() == ""
