"""watch: compares a canary with the active release while both answer callers."""

import argparse
import json
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import redis

from protos.scoring.v1.storage_pb2 import Figures, ReleaseFigures
from shared_model.commands import await_replicas, common, roles
from shared_model.errors import BadInput, StoreUnavailable
from shared_model.evaluation import canary
from shared_model.evaluation.canary import Calls, Lane, Outcome, Verdict
from shared_model.redis_store import keys
from shared_model.releases import naming, pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings

#: Exit codes beside 0, for a canary that keeps both service levels. 1 is also Python's own.
UNDECIDED, WORSE, INTERRUPTED = 4, 5, 130
#: A night should have run within this: that of the alert NightlyReleaseDiffers.
NIGHT_SECONDS = 26 * 3600.0
_POLL_SECONDS, _SAY_SECONDS = 0.5, 10.0
_COUNTED = ("answered", "late", "slow", "seconds")

#: Counts of a release by lane, "" for all lanes, and name.
Counts = Counter[tuple[str, str]]


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = common.add_command(
        commands,
        "watch",
        _watch,
        help="compare a canary with the active release, as their callers see both",
        more="It moves no pointer. Exit status: 0 if the canary keeps both service levels, 5 at once if it is worse, "
        "4 if that cannot be said, 3 if Redis was lost.",
        example="--minutes 10",
    )
    parser.add_argument("release", nargs="?", default="@canary", help=f"{naming.HELP} (default: @canary)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to watch (default: %(default)s)")
    parser.add_argument(
        "--calls", type=int, default=100, help="fewest calls of the canary to judge it by (default: %(default)s)"
    )


def _watch(args: argparse.Namespace, state: StateSettings) -> int:
    if not 0 < args.minutes < float("inf"):
        raise BadInput("--minutes", f"is {args.minutes:g}, must be positive")
    if args.calls < 1:
        raise BadInput("--calls", f"is {args.calls}, must be positive")
    release = common.release_id(state, args.release)
    model = roles.model_of(state, release, "canary")
    stays = f"the canary {release} stays as it is"
    # An interrupted watch leaves the pointer alone, and says so.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with common.redis_client(state) as client:
            watched = Watch(client, common.store_of(state), model, release, args.calls)
            verdict = watched.run(60 * args.minutes)
    except KeyboardInterrupt:
        print(f"shared_model watch: interrupted; {stays}", file=sys.stderr)
        return INTERRUPTED
    except StoreUnavailable as error:
        raise StoreUnavailable(f"{error}; {stays}") from error
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{verdict.reason}; {stays}" if verdict.outcome is Outcome.UNDECIDED else verdict.reason)
    return {Outcome.KEPT: 0, Outcome.UNDECIDED: UNDECIDED, Outcome.WORSE: WORSE}[verdict.outcome]


@dataclass(frozen=True)
class Night:
    """The last nightly run that published."""

    ds: str
    release: str
    rows: int
    rows_per_second: float
    finished_at: float

    def problem(self, pointed: Pointer, now: float) -> str:
        """In one line, where replicas cannot use what the nights publish. After a promotion, the last night is of the
        release before."""
        late = now - self.finished_at > NIGHT_SECONDS
        if self.release in (pointed.active, pointed.canary) or (self.release == pointed.previous and not late):
            return ""
        return (
            f"the last night, {self.ds}, was scored with {self.release}, which does not answer: mend the nights first"
        )

    def __str__(self) -> str:
        return f"last night {self.ds}: {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s, by {self.release}"


class Watch:
    """`model`: as the functions of `pointer` take it; `release`: its canary; `least`: calls to judge it by."""

    def __init__(self, client: "redis.Redis", store: Store, model: str, release: str, least: int) -> None:
        self._client, self._store, self._model = client, store, model
        self._release, self._least = release, least
        self._pointed = pointer.read(store, client, model)
        # By replica and release.
        self._seen: dict[tuple[str, str], Counts] = {}
        self._counts: dict[str, Counts] = {release: Counter(), self._pointed.active: Counter()}

    def run(self, seconds: float) -> Verdict:
        """Watch for so long, or until the canary is worse. Raises: StoreUnavailable."""
        said = time.monotonic()
        end = said + seconds
        while (verdict := self._look()).outcome is not Outcome.WORSE:
            now, pointed = time.monotonic(), pointer.read(self._store, self._client, self._model)
            if (pointed.active, pointed.canary) != (self._pointed.active, self._release):
                reason = f"the pointer was moved meanwhile, {pointed.active} is active; nothing was decided"
                return Verdict(Outcome.UNDECIDED, reason)
            if now >= end:
                return self._with_nights(verdict)
            if now - said >= _SAY_SECONDS:
                said = now
                common.say(f"{end - now:.0f} s left; canary: {self._calls(self._release)}")
            time.sleep(min(_POLL_SECONDS, end - now))
        return verdict

    def _with_nights(self, verdict: Verdict) -> Verdict:
        """A canary is not promoted where the nights are not as they should be, and is not to blame for that."""
        night = None if self._model else self._night()
        if night is None or verdict.outcome is not Outcome.KEPT:
            return verdict
        if problem := night.problem(self._pointed, time.time()):
            return Verdict(Outcome.UNDECIDED, problem)
        return Verdict(Outcome.KEPT, f"{verdict.reason}. {night}")

    def _look(self) -> Verdict:
        beats = await_replicas.beats(self._client, self._store.keys)
        for state, profile in beats:
            for figures in Figures.FromString(state.figures).releases:
                self._add(profile.replica.id, figures)
        failed = await_replicas.progress([profile for _, profile in beats], self._pointed, self._model).failed
        if failed:
            said = (f"replica {name} does not serve {why}" for name, why in failed.items())
            return Verdict(Outcome.WORSE, "; ".join(said))
        return canary.judge(self._calls(self._release), self._calls(self._pointed.active), self._least)

    def _add(self, replica: str, figures: ReleaseFigures) -> None:
        """Count what was ended since the last look. A replica that was not seen before counts from now on; one that has
        loaded the release again counts from 0."""
        if figures.release not in self._counts:
            return
        now = _counts(figures)
        before = self._seen.get((replica, figures.release), now)
        self._seen[replica, figures.release] = now
        again = any(now[name] < before[name] for name in before)
        self._counts[figures.release].update(now if again else {name: now[name] - before[name] for name in now})

    def _calls(self, release: str) -> Calls:
        counts = self._counts[release]
        lanes = sorted({path for path, _ in counts if path})
        return Calls(
            round(counts["", "failed"]),
            {path: Lane(**{name: counts[path, name] for name in _COUNTED}) for path in lanes},
        )

    def _night(self) -> Night | None:
        """None where none has published yet. Raises: StoreUnavailable."""
        try:
            stored = self._client.get(keys.last_run())
        except redis.RedisError as error:
            raise StoreUnavailable(f"Redis did not say which night has published: {error}") from error
        if not stored:
            return None
        last = json.loads(stored)
        return Night(*(last[name] for name in ("ds", "release", "rows", "rows_per_second", "finished_at")))


def _counts(figures: ReleaseFigures) -> Counts:
    counts = {("", "failed"): figures.failed}
    for lane in figures.lanes:
        counts.update({(lane.path, name): getattr(lane, name) for name in _COUNTED})
    return Counter(counts)
