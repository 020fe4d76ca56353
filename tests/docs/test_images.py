"""The serving image holds what serving imports, and nothing that only building needs."""

import re
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tandem_stack import uv

from shared_model.building import training_texts
from shared_model.releases.store import Release
from tests.conftest import REPOSITORY

#: What a replica does with a release, up to its first answer: everything is imported then.
_SERVE = """
import sys
from realtime_service.process import server
from realtime_service.rollout import probe
from shared_model.evaluation import attestation
from shared_model.releases.store import Store
from shared_model.types import Device, Precision

release = Store(sys.argv[1]).open(sys.argv[2])
for precision in (Precision.INT8, Precision.BF16):
    attestation.ensure(release, precision, Device.CPU, 1)
    release.engine(precision, Device.CPU, 1).close()
print(" ".join({name.partition(".")[0] for name in sys.modules}))
"""


def imported_by_serving(release: Release) -> set[str]:
    """Distributions that a serving process loads. Tandem itself is not one of them: the image copies it."""
    command = [sys.executable, "-c", _SERVE, release.files.root, release.id]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=120)
    providers = metadata.packages_distributions()
    modules = set(done.stdout.split())
    found = {canonicalize_name(name) for module in modules for name in providers.get(module, ())}
    return found - {canonicalize_name(name) for name in providers.get("shared_model", ())}


def installed_in_image() -> set[str]:
    """What the Dockerfile names, and what that requires."""
    run = re.search(
        r"RUN uv pip install (.*?)\n\n", (REPOSITORY / "realtime_service" / "Dockerfile").read_text(), re.DOTALL
    )
    assert run
    words = run[1].replace("\\\n", " ").split()
    found: set[str] = set()
    queue = [word for word in words if re.fullmatch(r"[a-z][a-z0-9-]*", word)]
    while queue:
        name = canonicalize_name(queue.pop())
        if name in found:
            continue
        found.add(name)
        needed = [Requirement(line) for line in metadata.requires(name) or ()]
        queue += [it.name for it in needed if it.marker is None or it.marker.evaluate({"extra": ""})]
    return found


def test_the_serving_image_holds_what_serving_imports_and_no_framework_of_building(release: Release) -> None:
    imported = imported_by_serving(release)
    assert {"openvino", "grpcio", "tokenizers"} <= imported
    assert imported.isdisjoint({"torch", "transformers", "nncf", "scipy", "scikit-learn", "sentence-transformers"})
    # Taken where they are and not missed where they are not: grpc looks for its tools, Python for its build backend.
    assert imported - installed_in_image() <= {"setuptools", "grpcio-tools"}


@pytest.mark.parametrize("folder", ["batch_job", "dags", "realtime_service"])
def test_images_are_made_with_the_uv_that_wrote_the_lock_files(folder: str) -> None:
    assert re.findall(r"\buv==(\S+)", (REPOSITORY / folder / "Dockerfile").read_text()) == [uv.VERSION]


def test_kept_training_texts_stay_out_of_images_and_of_git() -> None:
    """The last pattern of .dockerignore that matches decides."""
    pattern = f"**/{training_texts.FILE}"
    assert pattern in (REPOSITORY / ".dockerignore").read_text().partition("!shared_model\n")[2].splitlines()
    assert training_texts.FILE in (REPOSITORY / ".gitignore").read_text().splitlines()
