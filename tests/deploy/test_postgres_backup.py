"""Airflow's database: the backup by docker-compose.yml's own command, and the way back by the runbook's."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import program, unpacked
from tests.deploy.monitoring import DEPLOY
from tests.docs.test_compose import SERVICES
from tests.realtime_service.conftest import eventually
from tests.redis_nodes import free_port

pytestmark = [pytest.mark.heavy, pytest.mark.proof]

SERVICE = SERVICES["backup-postgres"]
#: Where the service has the volume of backups.
VOLUME = SERVICE["volumes"][0].partition(":")[2]
RESTORE = re.search(
    r"`docker-compose run --rm backup-postgres (pg_restore [^`]+)`", (DEPLOY / "RUNBOOK.md").read_text()
)
NIGHTS = "create table dag_run (run_id text, state text); insert into dag_run values ('night', 'success')"


class Postgres:
    """A server on a port of this host, whose superuser is `airflow`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.client = Path(program("postgresql-client-15", "pg_dump")).parent

    def call(self, command: str) -> str:
        """As the service does, whose host and volume are here."""
        here = command.replace("$$", "$").replace(VOLUME, str(self.folder))
        here = here.replace("--host postgres", f"--host 127.0.0.1 --port {self.port}")
        path = f"{self.client}{os.pathsep}{os.environ['PATH']}"
        own = {**os.environ, "PATH": path, "PGPASSWORD": ""}
        return subprocess.run(["sh", "-c", here], env=own, check=True, capture_output=True, text=True).stdout.strip()

    def query(self, query: str, database: str = "airflow") -> str:
        asked = f"psql --host postgres --username airflow --no-align --tuples-only --dbname {database}"
        return self.call(f"{asked} --command {shlex.quote(query)}")

    def is_ready(self) -> bool:
        try:
            return self.query("select 1", "postgres") == "1"
        except subprocess.CalledProcessError:
            return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Postgres]:
    made, data = Postgres(tmp_path), tmp_path / "server"
    found = Path("/usr/lib/postgresql/15/bin")
    programs = found if found.is_dir() else unpacked("postgresql-15") / found.relative_to("/")
    # Postgres refuses to be root.
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    data.mkdir()
    if nobody:
        os.chown(data, 65534, 65534)
        for above in (tmp_path, *tmp_path.parents[:2]):
            above.chmod(above.stat().st_mode | 0o111)
    subprocess.run(
        [*nobody, programs / "initdb", "--username=airflow", "--auth=trust", "--no-sync", data],
        check=True,
        capture_output=True,
        cwd=data,
    )
    options = ["-D", data, "-p", str(made.port), "-c", "listen_addresses=127.0.0.1", "-k", data, "-F"]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([*nobody, programs / "postgres", *options], stdout=log, stderr=log, cwd=data)
    try:
        eventually(made.is_ready)
        yield made
    finally:
        running.terminate()
        running.wait(30)


def test_a_backup_of_airflows_database_can_be_restored_as_the_runbook_says(server: Postgres) -> None:
    assert RESTORE
    server.query("create database airflow", "postgres")
    server.query(NIGHTS)
    at = server.call(SERVICE["command"][-1])
    assert Path(at).stat().st_mode & 0o777 == 0o600
    server.query("update dag_run set state = 'failed'")
    server.query("create table later (a int)")
    server.call(RESTORE[1].replace(f"{VOLUME}/postgres-TIME.dump", at))
    assert server.query("select state from dag_run where run_id = 'night'") == "success"
    # Into an empty one, too.
    server.query("drop database airflow", "postgres")
    server.query("create database airflow", "postgres")
    server.call(RESTORE[1].replace(f"{VOLUME}/postgres-TIME.dump", at))
    assert server.query("select state from dag_run where run_id = 'night'") == "success"
