"""The files of a deployment: copied by docker-compose.yml's command while a night runs, restored by the runbook's."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable

from batch_job import run_record
from batch_job.run_record import State
from batch_job.tables import table
from shared_model.releases import pointer, verdict_signature
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, NEXT_DAY, message, write_day
from tests.conftest import REPOSITORY
from tests.docs.test_compose import SERVICES

SERVICE = SERVICES["backup-files"]
#: Folders of its container, in the order of its volumes: the state, the operators' keys, the copies, the script.
STATE, OPERATOR, COPIES, SCRIPT = (it.split(":")[1] for it in SERVICE["volumes"])
RESTORE = re.search(r"release (tar --extract [^`]+)`", (REPOSITORY / ".deploy" / "RUNBOOK.md").read_text())
ROWS = 120


@dataclass
class Deployment:
    """Two folders, as the volumes of docker-compose.yml, and the Redis of both."""

    folder: Path
    redis_url: str

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def operator(self) -> Path:
        return self.folder / "operator"

    def environment(self, keys: Path) -> dict[str, str]:
        own = {"TANDEM_STATE": str(self.state), "TANDEM_RELEASES": "", "TANDEM_KEYS": str(keys)}
        own |= {"TANDEM_REDIS_URL": self.redis_url, "TANDEM_SPARK_MASTER": "local[2]", "TANDEM_INPUT_WAIT_SECONDS": "0"}
        return {**os.environ, **own}

    def run(self, module: str, *arguments: str, as_operator: bool = False) -> str:
        environment = self.environment(self.operator if as_operator else self.state / "keys")
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, (command, done.stderr[-3000:])
        return done.stdout

    def promote(self, release: str) -> None:
        """As an operator, whose signature every process then asks for."""
        settings = StateSettings(state=self.state, keys=str(self.operator), redis_url=self.redis_url)
        with redis.Redis.from_url(self.redis_url) as client:
            pointer.promote(Store.from_settings(settings), client, release)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "batch_job", *arguments]
        return subprocess.Popen(command, env=self.environment(self.state / "keys"), stderr=subprocess.DEVNULL)

    def copied(self) -> tuple[Path, Path]:
        """The archives of the files and of the operators' keys."""
        (copies := self.folder / "copies").mkdir(exist_ok=True)
        here = {STATE: self.state, OPERATOR: self.operator, SCRIPT: REPOSITORY / SERVICE["volumes"][3].split(":")[0]}
        words = [SERVICE["command"][0], *(moved(it, here) for it in SERVICE["command"][1:])]
        environment = {**os.environ, "BACKUP_FOLDER": str(copies)}
        made = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.split()
        state, operator = map(Path, made)
        assert {it.stat().st_mode & 0o777 for it in (state, operator)} == {0o600}
        # The next one may be of the same second.
        return state.rename(copies / f"{len(list(copies.iterdir()))}.tar"), operator

    def restored(self, name: str, state: Path, operator: Path) -> "Deployment":
        found = Deployment(self.folder / name, self.redis_url)
        assert RESTORE
        for file, target in ((state, found.state), (operator, found.operator)):
            target.mkdir(parents=True)
            command = RESTORE[1].replace("/backups/state-TIME.tar", str(file)).replace(STATE, str(target))
            subprocess.run(command.split(), check=True)
        return found


def moved(path: str, places: dict[str, Path]) -> str:
    """A path of the container on this host; the longest place that is above it counts."""
    above = max((it for it in places if path.startswith(it)), key=len)
    return f"{places[above]}{path.removeprefix(above)}"


@pytest.fixture
def deployment(tmp_path: Path, redis_url: str, releases_dir: Path, release: Release) -> Deployment:
    """With keys and a release as compose's service `release` makes them, and the messages of two days."""
    made = Deployment(tmp_path, redis_url)
    shutil.copytree(
        releases_dir / release.manifest.name / release.id, made.state / "releases" / release.manifest.name / release.id
    )
    made.run("shared_model", "keys", as_operator=True)
    (made.state / "keys").mkdir(mode=0o700)
    for name in ("cluster.key", "operators.pub"):
        shutil.copy(made.operator / name, made.state / "keys")
    key = made.operator / "operator.key"
    verdict_signature.sign(Store(made.state / "releases").open(release.id), key.read_bytes(), str(key))
    made.promote(release.id)
    for day in (DAY, NEXT_DAY):
        lines = [message(number, f"card {number % 20}") for number in range(ROWS)]
        write_day(StateSettings(state=made.state), lines, day)
    return made


def check_whole(copy: Deployment) -> dict[str, State]:
    """That each file that another one names is there. Returns the status of each run."""
    found: dict[str, State] = {}
    scores = copy.state / "scores"
    delta = DeltaTable(str(scores)) if scores.exists() else None
    for file in (copy.state / "runs").glob("*/*.json"):
        run = run_record.read(file)
        found[run.ds] = run.state
        if run.scoring:
            assert delta
            assert table.committed(delta, run.ds), f"the record of {run.ds} names a commit that the table lacks"
    for uri in delta.file_uris() if delta else ():
        assert Path(uri).exists(), f"the table's log names {uri}"
    return found


@pytest.mark.timeout(480)
def test_files_copied_while_a_night_runs_are_whole_and_the_next_night_goes_on(
    deployment: Deployment, release: Release
) -> None:
    for step in ("plan", "score", "publish"):
        deployment.run("batch_job", step, "--ds", DAY)
    deployment.run("batch_job", "plan", "--ds", NEXT_DAY)
    night, copies = deployment.start("score", "--ds", NEXT_DAY), list[tuple[Path, Path]]()
    while night.poll() is None:
        copies.append(deployment.copied())
    assert night.returncode == 0
    copies.append(deployment.copied())
    states = [check_whole(deployment.restored(f"copy-{number}", *it))[NEXT_DAY] for number, it in enumerate(copies)]
    assert (states[0], states[-1]) == (State.PLANNED, State.COMMITTED)
    # One that was made half-way: both keys, the release, the day that was published, and the one that goes on.
    half = deployment.restored("half", *copies[states.count(State.PLANNED) - 1])
    for of in ("state/keys/cluster.key", "state/keys/operators.pub", "operator/operator.key"):
        before, after = deployment.folder / of, half.folder / of
        assert (after.read_bytes(), after.stat().st_mode) == (before.read_bytes(), before.stat().st_mode), of
    assert release.id in half.run("shared_model", "list")
    half.promote(release.id)
    for step in ("plan", "score", "publish"):
        half.run("batch_job", step, "--ds", NEXT_DAY)
    for day in (DAY, NEXT_DAY):
        rows = half.run("batch_job", "read", "--ds", day, "--limit", "0", "--json").splitlines()
        assert len({json.loads(row)["id"] for row in rows}) == ROWS


def test_what_names_other_files_is_copied_before_them(deployment: Deployment) -> None:
    for name in ("runs/a.json", "scores/a.parquet", "scores/_delta_log/0.json", "inputs/x/_delta_log/0.json"):
        (deployment.state / name).parent.mkdir(parents=True, exist_ok=True)
        (deployment.state / name).write_text("{}")
    with tarfile.open(deployment.copied()[0]) as archive:
        names = [it.name for it in archive if it.isfile()]
    order = [names.index(f"./{it}") for it in ("runs/a.json", "scores/_delta_log/0.json", "scores/a.parquet")]
    assert order == sorted(order)
    assert names.index("./inputs/x/_delta_log/0.json") < order[-1]
    assert len(names) == len(set(names))


def test_a_folder_that_is_missing_fails_the_copy_and_leaves_none(deployment: Deployment) -> None:
    gone = Deployment(deployment.folder, deployment.redis_url)
    shutil.rmtree(gone.operator)
    with pytest.raises(subprocess.CalledProcessError):
        gone.copied()
    assert not list((gone.folder / "copies").glob("operator-*.tar"))
