"""python -m shared_model: build, look at and promote releases; write demo messages.

Without a command it builds the default release.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import redis

from shared_model import demo_messages, settings
from shared_model.errors import TandemError
from shared_model.redis_server import RedisServer
from shared_model.releases import pointer, store
from shared_model.settings import StateSettings

HEADS = Path(__file__).parent / "heads"
DEFAULT_NAME = "minilm-banking77"


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    args = _parser().parse_args(given or ["build"])
    try:
        return int(args.run(args, settings.load(StateSettings)) or 0)
    except (TandemError, OSError) as error:
        # An OSError names the file and what is wrong with it: missing, not ours to read, disk full.
        print(f"shared_model {args.command}: {error}", file=sys.stderr)
        return 2


def _build(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model import training
    from shared_model.releases import build, report

    if args.if_missing and _has_active(state):
        print(f"release {_active(state)} is active; nothing to build")
        return 0
    evaluation = training.read_examples(args.eval) if args.eval else None
    head = training.load_head(args.head)
    source = build.Source(args.name, args.encoder or build.default_encoder(), head)
    release, verdicts = build.build(state.releases_dir, source, _say, evaluation)
    for verdict in verdicts:
        clear = f" ({verdict.clear_agreement or 0:.2%} where the label is clear)"
        accuracy = "" if verdict.accuracy is None else f", accuracy {verdict.accuracy:.2%}"
        print(f"  {verdict.precision}/{verdict.device}: agreement {verdict.agreement:.2%}{clear}{accuracy}", end="")
        print("" if verdict.passed else f"  REFUSED: {'; '.join(verdict.failures)}")
    if not all(verdict.passed for verdict in verdicts):
        print(f"release {release.id} was built but not promoted; its report: {release.folder / report.MARKDOWN}")
        return 1
    _promote_release(state, release.id)
    return 0


def _train_head(args: argparse.Namespace, state: StateSettings) -> None:
    from shared_model import training
    from shared_model.releases import build

    encoder = args.encoder or build.default_encoder()
    examples = training.read_examples(args.data)
    _say(f"training a head for {len(set(examples.labels))} labels on {len(examples.texts)} texts")
    training.train(encoder, examples, build.MAX_TOKENS).save(args.out)
    print(f"head written to {args.out}; trained on data with sha256 {examples.sha256}")


def _gate(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model import training
    from shared_model.releases import build

    release = store.open_release(state.releases_dir, args.release or _active(state))
    verdicts = build.gate(release, _say, training.read_examples(args.eval) if args.eval else None)
    print((release.folder / store.REPORT).read_text(), end="")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _list(args: argparse.Namespace, state: StateSettings) -> None:
    active = _active(state) if _has_active(state) else None
    for release_id in store.list_releases(state.releases_dir):
        print(f"{release_id}{'  active' if release_id == active else ''}")


def _show(args: argparse.Namespace, state: StateSettings) -> None:
    release = store.open_release(state.releases_dir, args.release or _active(state))
    print(release.manifest.to_json().decode(), end="")


def _verify(args: argparse.Namespace, state: StateSettings) -> None:
    release = store.open_release(state.releases_dir, args.release or _active(state))
    release.verify()
    print(f"release {release.id}: {len(release.manifest.files)} files, every one as built")


def _promote(args: argparse.Namespace, state: StateSettings) -> int:
    release = store.open_release(state.releases_dir, args.release)
    release.verify()
    report = release.folder / store.REPORT
    if not report.exists() or not json.loads(report.read_text())["passed"]:
        print(f"release {release.id} has not passed its gate; run `python -m shared_model gate --release {release.id}`")
        return 1
    _promote_release(state, release.id)
    return 0


def _messages(args: argparse.Namespace, state: StateSettings) -> None:
    days = demo_messages.write_archive(
        state.messages_dir, args.count, args.days, args.seed, not args.clean, args.first_day
    )
    print(f"{args.count} messages in {state.messages_dir}: {', '.join(f'ds={day}' for day in days)}")


def _promote_release(state: StateSettings, release_id: str) -> None:
    with _redis_if_running(state) as client:
        pointer.set_active(state.releases_dir, client, release_id)
    print(f"release {release_id} is active")


def _active(state: StateSettings) -> str:
    with _redis_if_running(state) as client:
        return pointer.get_active(state.releases_dir, client).active


def _has_active(state: StateSettings) -> bool:
    try:
        store.open_release(state.releases_dir, _active(state))
    except TandemError:
        return False
    return True


@contextlib.contextmanager
def _redis_if_running(state: StateSettings) -> Iterator["redis.Redis"]:
    with RedisServer(state) as server, redis.Redis.from_url(server.url, socket_timeout=5.0) as client:
        yield client


def _say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shared_model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    build = commands.add_parser("build", help="build a release, judge it, and promote it if it passes")
    build.set_defaults(run=_build)
    build.add_argument("--name", default=DEFAULT_NAME)
    build.add_argument("--encoder", type=Path, help="Hugging Face encoder folder; default: all-MiniLM-L6-v2")
    build.add_argument("--head", type=Path, default=HEADS / "banking77", help="folder written by train-head")
    build.add_argument("--eval", type=Path, help="CSV of text,label to measure accuracy on")
    build.add_argument("--if-missing", action="store_true", help="do nothing when a release is active")

    train = commands.add_parser("train-head", help="train a linear head on frozen sentence embeddings")
    train.set_defaults(run=_train_head)
    train.add_argument("--data", type=Path, required=True, help="CSV of text,label with a header line")
    train.add_argument("--encoder", type=Path)
    train.add_argument("--out", type=Path, required=True)

    gate = commands.add_parser("gate", help="judge a release's variants against fp32 and write its report")
    gate.set_defaults(run=_gate)
    gate.add_argument("--release")
    gate.add_argument("--eval", type=Path)

    commands.add_parser("list", help="releases here, oldest first").set_defaults(run=_list)
    for name, run, text in (("show", _show, "print a manifest"), ("verify", _verify, "check every file's hash")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run)
        command.add_argument("release", nargs="?", help="default: the active release")
    promote = commands.add_parser("promote", help="make a release the active one")
    promote.set_defaults(run=_promote)
    promote.add_argument("release")

    messages = commands.add_parser("messages", help="write demo messages as an archive of days")
    messages.set_defaults(run=_messages)
    messages.add_argument("--count", type=int, default=20_000)
    messages.add_argument("--days", type=int, default=2)
    messages.add_argument("--first-day", type=date.fromisoformat, default=demo_messages.FIRST_DAY)
    messages.add_argument("--seed", type=int, default=7)
    messages.add_argument("--clean", action="store_true", help="without the damaged lines a real archive has")
    return parser


if __name__ == "__main__":
    sys.exit(main())
