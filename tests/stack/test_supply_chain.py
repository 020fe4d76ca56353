"""Audits and lists of what is installed: without a network, with an advisory, and without the tools of tests."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tandem_stack import sbom
from tandem_stack.environments import Environment

from tests.stack.helpers import only_line, run_python, write_script


@pytest.fixture
def database() -> Iterator[str]:
    """An HTTP server that knows nothing."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def audit(folder: Path, status: int, url: str) -> Any:
    """`tandem_stack.audit` with a uv that notes its arguments and ends with `status`."""
    shows = 'echo "ran: $*"; cat $(echo "$*" | grep -o "/[^ ]*[.]txt")'
    uv = write_script(
        folder / "bin", "uv", f'case "$1" in --version) echo "uv 99.0.0";; *) {shows}; exit {status};; esac'
    )
    environ = {**os.environ, "PATH": f"{uv.parent}:{os.environ['PATH']}", "OSV_URL": url}
    return run_python("-m", "tandem_stack.audit", "--ignore-vuln", "GHSA-1", environ=environ)


@pytest.mark.heavy
def test_without_the_database_an_audit_says_so_in_one_line_and_passes(tmp_path: Path) -> None:
    done = audit(tmp_path, 1, "http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    line = only_line(done.stdout)
    assert "vulnerabilities: not looked up, http://127.0.0.1:1 is not reached" in line


@pytest.mark.heavy
@pytest.mark.parametrize("status", [0, 1])
def test_with_the_database_every_lock_file_is_audited_and_a_finding_fails(
    status: int, tmp_path: Path, database: str
) -> None:
    done = audit(tmp_path, status, database)
    assert done.returncode == status, done.stderr
    assert done.stdout.count("ran: ") == 2
    runtime, airflow = (page.splitlines() for page in done.stdout.split("ran: ")[1:])
    for pins, names in ((runtime, {"grpcio", "pytest", "torch"}), (airflow, {"apache-airflow"})):
        found = [line.partition("==")[0] for line in pins if "==" in line.partition(" ")[0]]
        # Each once, without hashes: as pip-audit takes them.
        assert names <= set(found)
        assert len([line for line in pins if line.startswith("grpcio==")]) <= 1
    assert "sha256" not in done.stdout
    assert f"--osv-url {database}/v1/query" in done.stdout
    assert "--ignore-vuln GHSA-1" in done.stdout


def test_an_sbom_holds_what_the_lock_file_names_and_its_licences(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text("one-two==1.0 \\\n    --hash=sha256:0\nthree==2.0 ; python_version < '3' \\\n")
    environment = Environment("tiny", tmp_path, tmp_path / "venv", tmp_path / "a.lock", project=False)
    bom = {
        "bomFormat": "CycloneDX",
        "components": [
            {"bom-ref": "1", "name": "One_Two", "version": "1.0", "licenses": [{"license": {"id": "MIT"}}]},
            {"bom-ref": "3", "name": "three", "version": "2.0", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
            {"bom-ref": "9", "name": "pytest", "version": "9.0", "licenses": [{"license": {"name": "MIT"}}]},
        ],
        "dependencies": [{"ref": "1", "dependsOn": ["3", "9"]}, {"ref": "9", "dependsOn": ["1"]}],
    }
    kept = sbom.only(bom, sbom.locked(environment))
    assert json.loads(json.dumps(kept))["dependencies"] == [{"ref": "1", "dependsOn": ["3"]}]
    assert list(sbom.licences(kept)) == ["One_Two\t1.0\tMIT", "three\t2.0\tMIT OR Apache-2.0"]


def test_a_licence_without_a_name_is_said_to_be_missing() -> None:
    text = {"license": {"name": "BSD 3-Clause License\n\nCopyright"}}
    bom = {"components": [{"name": "a", "version": "1"}, {"name": "b", "version": "2", "licenses": [text]}]}
    assert list(sbom.licences(bom)) == ["a\t1\tnot declared", "b\t2\tBSD 3-Clause License"]
