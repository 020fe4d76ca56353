"""The canary check: a child process runs a release before this one loads it, so that a crash or a hang stays there.

    python -m realtime_service.rollout.probe ROOT RELEASE THREADS SECONDS PRECISION/DEVICE/RANKS/STAGES…

The child exits with 0 if the release is fit to serve, and with 1 and the problem on the last line of its output, as
JSON, if not. Any other end counts against the release, too.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from realtime_service.errors import Unfit, UnfitRelease
from realtime_service.models.warmup import judge, open_engine
from shared_model import settings
from shared_model.encoding import Text, collate
from shared_model.errors import TandemError
from shared_model.evaluation import attestation
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.types import Device, Precision, Spread

#: Niceness, a tenth of a busy core: little effect on requests, and still in time on a machine without idle cores. A
#: check of 2.4 s took 22 there, of the default release.
LOW_PRIORITY = 10
#: The parent kills the child at its limit. A child without a parent ends itself so many seconds later.
_ORPHAN_SECONDS = 5

#: Where a variant runs.
Placed = tuple[Device, Spread]

#: Words of the texts, from one token to more than any model reads.
_WORDS = (1, 5, 12, 40, 600)


async def run(
    store: Store, release_id: str, variants: Mapping[Precision, Placed], threads: int, seconds: float
) -> None:
    """Check a release as this replica would run it. Raises: UnfitRelease with the reason why it must not serve here."""
    arguments = (store.files.root, release_id, str(threads), str(seconds))
    places = [f"{precision}/{device}/{it.ranks}/{it.stages}" for precision, (device, it) in variants.items()]
    child = _start(*arguments, *places)
    ended = asyncio.get_running_loop().run_in_executor(None, child.communicate)
    try:
        await asyncio.wait({ended}, timeout=seconds)
        if not ended.done():
            raise UnfitRelease(Unfit.HUNG, f"its probe was not done after {seconds:g} s")
    finally:
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        output, _ = await ended
    if child.returncode:
        raise _unfit(child.returncode, output)


def _start(*arguments: str) -> "subprocess.Popen[bytes]":
    """A child with a group of its own, which uvloop's processes cannot have; no session, because where the kernel
    groups by session, niceness has no effect between sessions."""
    command = [sys.executable, "-m", __name__, *arguments]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0)
    # Set by the parent, because the child spends its first second on imports.
    os.setpriority(os.PRIO_PROCESS, child.pid, LOW_PRIORITY)
    return child


def _unfit(code: int, output: bytes) -> UnfitRelease:
    if code < 0:
        return UnfitRelease(Unfit.CRASHED, f"its probe was ended by {signal.Signals(-code).name}")
    with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
        return UnfitRelease(Unfit.REFUSED, json.loads(output.splitlines()[-1])["problem"])
    return UnfitRelease(Unfit.CRASHED, f"its probe ended with exit code {code}; the log has its last words")


def examine(release: Release, variants: Mapping[Precision, Placed], threads: int) -> None:
    """Open and run every variant, and check its attestation. Raises: ReleaseError."""
    release.verify()
    encoder = release.encoder()
    lengths = ["word " * words for words in _WORDS]
    texts: list[Text] = [(text, text) if release.manifest.reads.pairs else text for text in lengths]
    batches = [collate([encoder.encode(text)]) for text in texts] + [collate(encoder.encode_many(texts * 3))]
    for precision, (device, spread) in variants.items():
        with contextlib.closing(open_engine(release, precision, device, threads, spread=spread)) as engine:
            for batch in batches:
                judge(engine.score(batch), batch, release)
        attestation.ensure(release, precision, device, threads, spread)


def main(arguments: Sequence[str]) -> int:
    root, release_id, threads, seconds, *names = arguments
    # A crash is a result of the check: no core dump is needed.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, float(seconds) + _ORPHAN_SECONDS)
    parts = [name.split("/") for name in names]
    try:
        examine(
            Store.from_settings(settings.load(StateSettings, releases=root)).open(release_id),
            {
                Precision(precision): (Device(device), Spread(int(ranks), int(stages)))
                for precision, device, ranks, stages in parts
            },
            int(threads),
        )
    except TandemError as error:
        sys.stdout.write(json.dumps({"problem": str(error)}) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
