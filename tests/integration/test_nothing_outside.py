"""A build and a service write into the state folder only; HOME stays empty."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from realtime_service.client import Client
from shared_model.releases.store import Store
from tests.realtime_service.conftest import start_service
from tests.shared_model import tiny_models

pytestmark = pytest.mark.heavy

BUILD = """
import sys
from pathlib import Path
from shared_model.building import checkpoint
from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.shared_model import tiny_builds
release, _ = tiny_builds.built(Path(sys.argv[2]), tiny_builds.surer(checkpoint.load(sys.argv[1])))
pointer.promote(Store(sys.argv[2]), None, release.id)
"""


def test_home_stays_empty(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    home.mkdir()
    model = tiny_models.make(tmp_path / "model", "bert")
    gone = ("XDG_", "NNCF_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(gone)}
    environ = {**kept, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", BUILD, str(model), str(state / "releases")]
    built = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr
    assert [str(it) for it in home.rglob("*")] == []
    service = start_service(state, state / "releases", HOME=str(home))
    with Client(service.address) as client:
        assert client.score("where is my card").release in Store(state / "releases").ids()
    assert service.stop() == 0
    assert [str(it) for it in home.rglob("*")] == []
    assert (state / "keys").stat().st_mode & 0o777 == 0o700
