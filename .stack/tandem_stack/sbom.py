"""python -m tandem_stack.sbom FOLDER: what the environments hold, as CycloneDX and as a list of licences.

cyclonedx-py reads the installed distributions. Of the runtime environment, those that only tests and checks need are
left out, because no image has them.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tandem_stack.checks import Problem
from tandem_stack.environments import Environment, environments
from tandem_stack.progress import complain, say
from tandem_stack.uv import Uv

#: Run by uv in an environment of its own, so that the lock files need not have it.
TOOL = "cyclonedx-bom==7.5.0"


def locked(environment: Environment) -> set[str]:
    """The distributions that a lock file names."""
    return set(re.findall(r"^([a-z0-9-]+)==", environment.lock_file.read_text(), re.MULTILINE))


def only(bom: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The SBOM without other components, and without what depends on them."""
    components = [it for it in bom["components"] if re.sub(r"[-_.]+", "-", it["name"]).lower() in names]
    kept = {it["bom-ref"] for it in components} | {bom.get("metadata", {}).get("component", {}).get("bom-ref")}
    depends = [
        {**it, "dependsOn": [ref for ref in it.get("dependsOn", ()) if ref in kept]}
        for it in bom.get("dependencies", ())
        if it["ref"] in kept
    ]
    return {**bom, "components": components, "dependencies": depends}


def licences(bom: dict[str, Any]) -> Iterator[str]:
    """A line for each component: name, version, licences, separated by tabs."""
    for it in sorted(bom["components"], key=lambda it: str(it["name"]).lower()):
        given = [_licence(choice) for choice in it.get("licenses", ())]
        yield "\t".join((it["name"], it["version"], " OR ".join(dict.fromkeys(filter(None, given))) or "not declared"))


def _licence(choice: dict[str, Any]) -> str:
    named = choice.get("license", {})
    # A text instead of a name is long: its first line says which licence it is.
    name = str(choice.get("expression") or named.get("id") or named.get("name") or "")
    return name.strip().partition("\n")[0]


def write(uv: Uv, environment: Environment, folder: Path) -> int:
    """Returns the number of components. Raises: Problem with the tool's last line."""
    command = [uv.program, "tool", "run", *uv.options, "--from", TOOL, "cyclonedx-py", "environment"]
    options = ("--output-reproducible", "--of", "JSON", str(environment.python))
    done = subprocess.run([*command, *options], env=dict(uv.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem(
            f"{environment.name} environment: {(done.stderr.strip() or 'cyclonedx-py failed').splitlines()[-1]}"
        )
    bom = only(json.loads(done.stdout), locked(environment))
    (folder / f"{environment.name}.cdx.json").write_text(json.dumps(bom, indent=1) + "\n")
    (folder / f"{environment.name}-licences.tsv").write_text("".join(f"{line}\n" for line in licences(bom)))
    return len(bom["components"])


def main(arguments: Sequence[str]) -> int:
    folder = Path(*arguments)
    folder.mkdir(parents=True, exist_ok=True)
    uv = Uv.find()
    for environment in environments():
        say(f"{environment.name}: {write(uv, environment, folder)} components, in {folder}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Problem as problem:
        complain(f"sbom: {problem}")
        sys.exit(2)
