"""python -m realtime_service: serve, call a service from the command line, or change how all replicas route."""

import argparse
import contextlib
import sys
import time
from typing import Any

from realtime_service.client import DEFAULT_ADDRESS, Answer, CallError, Client
from shared_model.errors import TandemError
from shared_model.types import Priority


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args) or 0)
    except TandemError as error:
        print(f"realtime_service {args.command}: {error}", file=sys.stderr)
        return 2
    except CallError as error:
        print(f"realtime_service {args.command}: {error}", file=sys.stderr)
        return 1


def _serve(args: argparse.Namespace) -> int:
    from realtime_service import serving

    return serving.serve(
        grpc_address=args.address,
        metrics_address=args.metrics,
        lanes=args.lanes,
        workers=args.workers,
        reflection=args.reflection or None,
    )


def _call(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    with Client(args.address) as client:
        priority = Priority(args.priority)
        answer = client.score(args.text, timeout_ms=args.timeout_ms, priority=priority, top_k=args.top_k)
    print(_readable(answer, time.perf_counter() - started))


def _readable(answer: Answer, seconds: float) -> str:
    lines = []
    for result in answer.results:
        lines += [f"{label.name:<44}{label.score:8.3f}" for label in result.labels]
        if result.vector:
            start = ", ".join(f"{number:.3f}" for number in result.vector[:5])
            lines.append(f"embedding of {len(result.vector)} numbers: {start}, …")
        cut = ", truncated" if result.truncated else ""
        lines.append(f"  {result.tokens} tokens{cut}")
    lines.append(
        f"  {answer.path} path ({answer.reason}), {answer.precision}, batch {answer.batch_size}, {answer.release}"
    )
    waited, computed = answer.queue_us / 1000, answer.compute_us / 1000
    lines.append(f"  waited {waited:.2f} ms, computed {computed:.2f} ms, {seconds * 1000:.1f} ms with the connection")
    return "\n".join(lines)


def _chat(args: argparse.Namespace) -> None:
    from realtime_service import chat

    with Client(args.address) as client, contextlib.suppress(KeyboardInterrupt):
        chat.chat(client, chat.typed(), print, args.timeout_ms)


def _describe(args: argparse.Namespace) -> None:
    with Client(args.address) as client:
        print(client.describe(), end="")


def _show_policy(args: argparse.Namespace) -> None:
    from realtime_service.routing import policy_command

    print(policy_command.show())


def _set_policy(args: argparse.Namespace) -> None:
    from realtime_service.routing import policy_command

    print(policy_command.set_(args.assignments))


def _reset_policy(args: argparse.Namespace) -> None:
    from realtime_service.routing import policy_command

    print(policy_command.reset_all() if args.all else policy_command.reset(args.names))


def _list_dead_letters(args: argparse.Namespace) -> None:
    from realtime_service import dead_letters

    for line in dead_letters.listed(args.count):
        print(line)


def _replay_dead_letters(args: argparse.Namespace) -> None:
    from realtime_service import dead_letters

    print(f"{dead_letters.replay(args.ids or None)} accepted again")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m realtime_service", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    serve = commands.add_parser("serve", help="answer calls until SIGTERM or Ctrl-C")
    serve.set_defaults(run=_serve)
    serve.add_argument("--address", help="HOST:PORT; overrides TANDEM_GRPC_ADDRESS")
    serve.add_argument("--metrics", help="HOST:PORT; overrides TANDEM_METRICS_ADDRESS")
    serve.add_argument("--lanes", help="which lanes to serve, with commas; overrides TANDEM_LANES")
    serve.add_argument("--workers", help="supervised worker processes; overrides TANDEM_WORKERS")
    serve.add_argument("--reflection", action="store_true", help="serve gRPC reflection")

    call = commands.add_parser("call", help="score one text and print the answer")
    call.set_defaults(run=_call)
    call.add_argument("text")
    call.add_argument("--timeout-ms", type=int)
    call.add_argument("--priority", choices=[p.value for p in Priority], default=Priority.UNSPECIFIED.value)
    call.add_argument("--top-k", type=int, default=3)
    call.add_argument("--address", default=DEFAULT_ADDRESS)

    chat = commands.add_parser("chat", help="type to the bot: intent, path and milliseconds of each line")
    chat.set_defaults(run=_chat)
    chat.add_argument("--timeout-ms", type=int, help="how long the bot may take for an answer")
    chat.add_argument("--address", default=DEFAULT_ADDRESS)

    letters = commands.add_parser("dead-letters", help="deferred work that was given up because its consumers died")
    actions = letters.add_subparsers(dest="action", required=True)
    listed = actions.add_parser("list", help="print it, oldest first")
    listed.set_defaults(run=_list_dead_letters)
    listed.add_argument("--count", type=int, default=20, help="lines, 20 unless told")
    replayed = actions.add_parser("replay", help="accept it again, as if it had never been taken")
    replayed.set_defaults(run=_replay_dead_letters)
    which = replayed.add_mutually_exclusive_group(required=True)
    which.add_argument("ids", nargs="*", default=[], metavar="ID", help="request ids")
    which.add_argument("--all", action="store_true")

    describe = commands.add_parser("describe", help="print what a service serves")
    describe.set_defaults(run=_describe)
    describe.add_argument("--address", default=DEFAULT_ADDRESS)
    _add_policy(commands)
    return parser


def _add_policy(commands: "argparse._SubParsersAction[Any]") -> None:
    policy = commands.add_parser("policy", help="look at or change how running replicas route; acts within a second")
    actions = policy.add_subparsers(dest="action", required=True)

    show = actions.add_parser("show", help="print the policy, and which numbers operators have set")
    show.set_defaults(run=_show_policy)

    change = actions.add_parser("set", help="set numbers: policy set latency_below_ms=80 quota.some-caller=20")
    change.set_defaults(run=_set_policy)
    change.add_argument("assignments", nargs="+", metavar="NAME=NUMBER")

    reset = actions.add_parser("reset", help="let numbers be what the settings say again")
    reset.set_defaults(run=_reset_policy)
    which = reset.add_mutually_exclusive_group(required=True)
    which.add_argument("names", nargs="*", default=[], metavar="NAME")
    which.add_argument("--all", action="store_true", help="every number, also where the stored policy is damaged")


if __name__ == "__main__":
    sys.exit(main())
