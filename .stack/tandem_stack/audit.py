"""python -m tandem_stack.audit [OPTIONS]: look up known vulnerabilities of what the lock files name.

pip-audit asks OSV, the database of advisories, about names and versions. Without a way there, one line says so and the
check passes: it depends on the network, and the lock files do not change by themselves. OPTIONS are pip-audit's own,
such as `--ignore-vuln ID`.
"""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

from tandem_stack.checks import Problem
from tandem_stack.environments import environments
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
    locks = [word for made in environments() for path in made.lock_files for word in ("-r", str(path))]
    asked = ["--vulnerability-service", "osv", "--osv-url", f"{DATABASE}/v1/query", "--disable-pip", "--no-deps"]
    command = [uv.program, "tool", "run", *uv.options, "--from", TOOL, "pip-audit", *asked, "--progress-spinner", "off"]
    return subprocess.run([*command, *locks, *options], env=dict(uv.environ), check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Problem as problem:
        complain(f"audit: {problem}")
        sys.exit(2)
