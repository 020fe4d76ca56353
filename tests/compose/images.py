"""Stand-ins of the base images, and the images that docker-compose.yml builds on them."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tandem_stack.uv import Uv

from tests.compose.engine import Engine
from tests.conftest import REPOSITORY
from tests.debian import unpacked

_SUITE = "bookworm"
_HERE = Path(__file__).parent / "stand_ins"
#: Variable of .env.example → stand-in. Grafana has no stand-in: no package of it is in reach.
STAND_INS = {
    "PYTHON_IMAGE": "python",
    "AIRFLOW_IMAGE": "airflow",
    "REDIS_IMAGE": "redis",
    "POSTGRES_IMAGE": "postgres",
    "PROMETHEUS_IMAGE": "prometheus",
    "ALERTMANAGER_IMAGE": "alertmanager",
}
Run = Callable[..., str]


def tag(name: str) -> str:
    return f"tandem-stand-in/{name}"


def build_stand_ins(engine: Engine, folder: Path, run: Run) -> None:
    if subprocess.run(engine.docker("image", "inspect", tag("debian")), check=False, capture_output=True).returncode:
        _import_debian(engine, folder, run)
    context = folder / "context"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(_HERE, context)
    shutil.copy(REPOSITORY / "requirements-airflow.in", context)
    (context / "wheels").mkdir()
    for wheels in local_wheels():
        shutil.copytree(wheels, context / "wheels", dirs_exist_ok=True)
    for name in (*STAND_INS.values(), "webhook"):
        build = engine.docker("build", "--network", "host", "--target", name, "--tag", tag(name), context)
        run(build, work=f"building the stand-in {name}")


def _import_debian(engine: Engine, folder: Path, run: Run) -> None:
    """An image of what debootstrap makes, with the certificates that this machine trusts."""
    tree, root = folder / "debian", unpacked("debootstrap") / "usr"
    shutil.rmtree(tree, ignore_errors=True)
    command = [str(root / "sbin" / "debootstrap"), "--variant=minbase", "--include=ca-certificates", _SUITE, str(tree)]
    run(command, env={**os.environ, "DEBOOTSTRAP_DIR": str(root / "share" / "debootstrap")})
    authorities = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(Path("/") / authorities, tree / authorities)
    packed = folder / "debian.tar"
    run(["tar", "--create", "--file", str(packed), "--directory", str(tree), "."])
    run(engine.docker("import", "--change", f"ENV SSL_CERT_FILE=/{authorities}", packed, tag("debian")))
    packed.unlink()
    shutil.rmtree(tree)


def local_wheels() -> list[str]:
    """Folders in which this machine's pip looks for wheels, such as the CPU build of torch."""
    return [it for it in Uv.find().environ.get("UV_FIND_LINKS", "").split(",") if it.startswith("/")]


def build_arguments() -> dict[str, str]:
    """Build arguments of our Dockerfiles besides the base images."""
    return {"TORCH_OPTIONS": "--find-links /opt/wheels"} if local_wheels() else {}
