"""The files of a deployment: copied by docker-compose.yml's command while a night runs, restored by the runbook's."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable

from batch_job import run_record
from batch_job.run_record import State
from batch_job.tables import table
from shared_model.published import epochs
from shared_model.releases import pointer, verdict_signature
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, NEXT_DAY, message, write_day
from tests.conftest import REPOSITORY
from tests.docs.test_compose import SERVICES

pytestmark = pytest.mark.heavy

SERVICE = SERVICES["backup-files"]
#: Folders of its container, in the order of its volumes: the state, the operators' keys, the copies, the script.
STATE, OPERATOR, COPIES, SCRIPT = (it.split(":")[1] for it in SERVICE["volumes"])
RUNBOOK = (REPOSITORY / ".deploy" / "RUNBOOK.md").read_text()
RESTORE = re.search(r"release (tar --extract [^`]+)`", RUNBOOK)
#: Of the files that no volume holds, and the way back.
SECRETS = re.findall(r"`([^`]*tar --[^`]+ --file secrets-TIME.tar[^`]*)`", RUNBOOK)
ROWS = 120

#: A deployment goes on each time that tar has copied a part: a release is built and promoted; a file of rows, the
#: commit that names it, a checkpoint and the hint at that are written; the run's record says which commit is its own.
MEANWHILE = """#!/bin/sh
cd "$(dirname "$0")/state" || exit 1
at=$(find inputs -name '*.parquet' ! -name '*.checkpoint.parquet' | wc -l)
for model in a b c d; do
  mkdir "releases/$model/$model-$at" && touch "releases/$model/$model-$at/manifest.json"
done
put() { echo "$at" >"$1.part" && mv "$1.part" "$1"; }
put releases/ACTIVE.json
put "inputs/x/$at.parquet"
put "inputs/x/_delta_log/$at.json"
put "inputs/x/_delta_log/$at.checkpoint.parquet"
put inputs/x/_delta_log/_last_checkpoint
put runs/day/record.json
"""


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
        return subprocess.Popen(command, env=self.environment(self.state / "keys"))

    def copied(self, **variables: str) -> tuple[Path, Path]:
        """The archives of the files and of the operators' keys."""
        (copies := self.folder / "copies").mkdir(exist_ok=True)
        here = {STATE: self.state, OPERATOR: self.operator, SCRIPT: REPOSITORY / SERVICE["volumes"][3].split(":")[0]}
        words = [SERVICE["command"][0], *(moved(it, here) for it in SERVICE["command"][1:])]
        environment = {**os.environ, "BACKUP_FOLDER": str(copies), **variables}
        made = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
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


def test_files_copied_while_a_night_runs_are_whole_and_the_next_night_goes_on(
    deployment: Deployment, release: Release, redis_client: "redis.Redis"
) -> None:
    for step in ("plan", "score", "publish"):
        deployment.run("batch_job", step, "--ds", DAY)
    of_redis = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    # Of the second pointer, and of the night, the copy of Redis knows nothing.
    deployment.promote(release.id)
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
    redis_client.flushdb()
    for key, value in of_redis.items():
        redis_client.restore(key, 0, value)
    for step in ("plan", "score", "publish"):
        half.run("batch_job", step, "--ds", NEXT_DAY)
    assert epochs.live(redis_client, release.id).startswith(f"{NEXT_DAY}.")
    half.promote(release.id)
    for day in (DAY, NEXT_DAY):
        rows = half.run("batch_job", "read", "--ds", day, "--limit", "0", "--json").splitlines()
        assert len({json.loads(row)["id"] for row in rows}) == ROWS


def test_each_file_that_another_one_names_is_copied_though_all_change_meanwhile(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "")
    deployment.operator.mkdir()
    for folder in ("releases/a", "releases/b", "releases/c", "releases/d", "inputs/x/_delta_log", "runs/day"):
        (deployment.state / folder).mkdir(parents=True)
        # Longer than the part after which tar calls.
        (deployment.state / folder / "0").write_bytes(bytes(12_000))
        (deployment.state / folder).chmod(0o700)
    (change := tmp_path / "meanwhile").write_text(MEANWHILE)
    change.chmod(0o700)
    subprocess.run([change], check=True)
    copied = deployment.copied(TAR_OPTIONS=f"--checkpoint=1 --checkpoint-action=exec={change}")
    state = deployment.restored("copy", *copied).state
    log = state / "inputs" / "x" / "_delta_log"
    assert log.stat().st_mode == (deployment.state / "inputs" / "x" / "_delta_log").stat().st_mode
    commits = {int(it.stem) for it in log.glob("*.json")}
    assert number_in(state / "runs" / "day" / "record.json") in commits
    assert commits <= {int(it.stem) for it in log.parent.glob("*.parquet")}
    assert commits >= {int(it.name.partition(".")[0]) for it in log.glob("*.checkpoint.parquet")}
    hint = log / "_last_checkpoint"
    assert not hint.exists() or (log / f"{number_in(hint)}.checkpoint.parquet").exists()
    active = number_in(state / "releases" / "ACTIVE.json")
    assert all((state / "releases" / it / f"{it}-{active}" / "manifest.json").exists() for it in "abcd")
    # There was something to miss.
    assert number_in(deployment.state / "releases" / "ACTIVE.json") > active


def number_in(file: Path) -> int:
    return int(file.read_text())


def test_passwords_and_certificates_come_back_with_their_rights(tmp_path: Path) -> None:
    before, after = (tmp_path / it for it in ("before", "after"))
    for folder in (before, after):
        (folder / ".deploy").mkdir(parents=True)
    (before / ".env").write_text("REDIS_BACKUP_PASSWORD=secret\n")
    (before / ".env").chmod(0o600)
    certificates = before / ".deploy" / "certificates"
    make = ("certificates", str(certificates), "--group", "--host", "router")
    subprocess.run([sys.executable, "-m", "shared_model", *make], check=True, cwd=REPOSITORY, capture_output=True)
    backup, restore = (it.replace("secrets-TIME.tar", str(tmp_path / "secrets.tar")) for it in SECRETS)
    subprocess.run(["sh", "-c", backup], check=True, cwd=before)
    assert (tmp_path / "secrets.tar").stat().st_mode & 0o777 == 0o600
    subprocess.run(["sh", "-c", restore], check=True, cwd=after)
    assert facts(after) == facts(before)
    assert {".env", "ca.key", "ca.pem", "cert.pem", "key.pem"} <= {Path(it).name for it in facts(after)}


def facts(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Rights, owner and contents of each file and folder below."""
    return {
        str(it.relative_to(folder)): (it.stat().st_mode, it.stat().st_uid, it.read_bytes() if it.is_file() else b"")
        for it in folder.rglob("*")
    }


def test_a_folder_that_is_missing_fails_the_copy_and_leaves_none(deployment: Deployment) -> None:
    gone = Deployment(deployment.folder, deployment.redis_url)
    shutil.rmtree(gone.operator)
    with pytest.raises(subprocess.CalledProcessError):
        gone.copied()
    assert not list((gone.folder / "copies").glob("operator-*.tar"))
