"""A release is tried in a process of its own before this one loads it: a native crash or a hang stays there.

    python -m realtime_service.rollout.probe ROOT RELEASE THREADS SECONDS PRECISION/DEVICE…

The child exits 0 if the release is fit to serve; 1 with the problem on the last line of its output, as JSON, if it is
not; any other end is the release's doing, too.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
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
from shared_model.types import Device, Precision

#: Niceness. A tenth of a busy core: callers hardly feel the probe, and it is done in time when they leave nothing idle.
LOW_PRIORITY = 10
#: The parent ends the child at its limit. A child without a parent ends itself, so much later.
_ORPHAN_SECONDS = 5

#: From one token to more than any model reads, alone and together.
_WORDS = (1, 5, 12, 40, 600)


async def run(
    store: Store, release_id: str, variants: Mapping[Precision, Device], threads: int, seconds: float
) -> None:
    """Probe a release as this replica would run it. Raises: UnfitRelease saying why it must not serve here."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, store.files.root, release_id, str(threads), str(seconds)),
        *(f"{precision}/{device}" for precision, device in variants.items()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        # A group, and not a session: where the kernel groups by session, a session of its own would not be low.
        process_group=0,
    )
    try:
        # From here, not from there: the first second goes into imports.
        os.setpriority(os.PRIO_PROCESS, child.pid, LOW_PRIORITY)
        output, _ = await asyncio.wait_for(child.communicate(), seconds)
    except TimeoutError:
        raise UnfitRelease(Unfit.HUNG, f"its probe was not done after {seconds:g} s") from None
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    if child.returncode:
        raise _unfit(child.returncode, output)


def _unfit(code: int, output: bytes) -> UnfitRelease:
    if code < 0:
        return UnfitRelease(Unfit.CRASHED, f"its probe was ended by {signal.Signals(-code).name}")
    with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
        return UnfitRelease(Unfit.REFUSED, json.loads(output.splitlines()[-1])["problem"])
    return UnfitRelease(Unfit.CRASHED, f"its probe ended with exit code {code}; the log has its last words")


def examine(release: Release, variants: Mapping[Precision, Device], threads: int) -> None:
    """Open, run and prove every variant. Raises: ReleaseError."""
    release.verify()
    encoder = release.encoder()
    texts: list[Text] = [_text("word " * words, release.manifest.reads.pairs) for words in _WORDS]
    batches = [collate([encoder.encode(text)]) for text in texts] + [collate(encoder.encode_many(texts * 3))]
    for precision, device in variants.items():
        with contextlib.closing(open_engine(release, precision, device, threads)) as engine:
            for batch in batches:
                judge(engine.score(batch), batch, release)
        attestation.ensure(release, precision, device, threads)


def main(arguments: Sequence[str]) -> int:
    root, release_id, threads, seconds, *names = arguments
    # A crash is an answer here, not something to debug.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, float(seconds) + _ORPHAN_SECONDS)
    pairs = [name.split("/") for name in names]
    try:
        examine(
            Store.from_settings(settings.load(StateSettings, releases=root)).open(release_id),
            {Precision(precision): Device(device) for precision, device in pairs},
            int(threads),
        )
    except TandemError as error:
        sys.stdout.write(json.dumps({"problem": str(error)}) + "\n")
        return 1
    return 0


def _text(text: str, pair: bool) -> Text:
    return (text, text) if pair else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
