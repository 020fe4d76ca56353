"""The image of the online service: its size, and what is not in it."""

import json
from collections.abc import Callable

from tests.compose.engine import Engine
from tests.compose.images import Run, tag

IMAGE = "tandem/realtime-service"
#: Megabytes. All of the image; and of them the base, python:…-slim, of which there is only a larger stand-in here.
MOST, BASE = 700, 200
ABSENT = ("torch", "transformers", "scipy", "pyarrow", "deltalake", "pyspark", "nncf")
_PROBE = """
import importlib.util, shutil, sys
print(*(it for it in sys.argv[1:] if importlib.util.find_spec(it)), shutil.which("java") or "")
"""


def check(engine: Engine, run: Run, say: Callable[[str], None]) -> None:
    """Raises: AssertionError where it is too large, or holds what only building needs."""
    found = json.loads(run(engine.docker("image", "inspect", IMAGE, tag("python")), quiet=True))
    whole, base = (it["Size"] / 1e6 for it in found)
    offline = ("run", "--rm", "--network", "none", "--read-only")
    present = run(engine.docker(*offline, IMAGE, "python", "-c", _PROBE, *ABSENT)).split()
    absent = f"of {', '.join(ABSENT)} and java it has {present or 'nothing'}"
    say(f"{IMAGE}: {whole - base:.0f} MB above its base (the stand-in of the base: {base:.0f} MB); {absent}")
    assert whole - base <= MOST - BASE
    assert not present
