"""python -m tandem_stack.audit [OPTIONS]: look up known vulnerabilities of what the lock files name.

pip-audit asks OSV, the database of advisories, about names and versions. Without a way there, one line says so and the
check passes: it depends on the network, and the lock files do not change by themselves. OPTIONS are pip-audit's own,
such as `--ignore-vuln ID`.
"""

import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence

from tandem_stack.checks import Problem
from tandem_stack.environments import Environment, environments
from tandem_stack.progress import complain, say
from tandem_stack.uv import Uv

#: Run by uv in an environment of its own, so that the lock files need not have it.
TOOL = "pip-audit==2.10.1"
DATABASE = os.environ.get("OSV_URL", "https://api.osv.dev")
_SECONDS = 5.0


def unreachable() -> str:
    """Why the database does not answer; empty if it does, with whatever status."""
    try:
        with urllib.request.urlopen(f"{DATABASE}/v1/vulns/PYSEC-2021-1", timeout=_SECONDS):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (urllib.error.URLError, OSError) as error:
        return str(getattr(error, "reason", error))


def main(options: Sequence[str]) -> int:
    """Returns the exit status: 1 if a vulnerability is known."""
    if why := unreachable():
        say(f"vulnerabilities: not looked up, {DATABASE} is not reached ({why})")
        return 0
    uv = Uv.find()
    return max([_audit(uv, environment, options) for environment in environments()])


def _audit(uv: Uv, environment: Environment, options: Sequence[str]) -> int:
    """The exit status of pip-audit, which refuses a package that two lock files name."""
    written = "\n".join(path.read_text() for path in environment.lock_files)
    pins = sorted(set(re.findall(r"^([a-z0-9-]+==.*?) *\\?$", written, re.MULTILINE)))
    asked = ["--vulnerability-service", "osv", "--osv-url", f"{DATABASE}/v1/query", "--disable-pip", "--no-deps"]
    command = [uv.program, "tool", "run", *uv.options, "--from", TOOL, "pip-audit", *asked, "--progress-spinner", "off"]
    say(f"vulnerabilities of {len(pins)} packages of the {environment.name} environment")
    with tempfile.NamedTemporaryFile("w", prefix=f"{environment.name}-", suffix=".txt") as listed:
        listed.write("\n".join(pins))
        listed.flush()
        environ = {**uv.environ, "PIP_AUDIT_LOGLEVEL": "ERROR"}
        return subprocess.run([*command, "-r", listed.name, *options], env=environ, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Problem as problem:
        complain(f"audit: {problem}")
        sys.exit(2)
