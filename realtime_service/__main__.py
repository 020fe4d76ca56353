"""python -m realtime_service: serve, call a service from the command line, or change how all replicas route."""

import argparse
import contextlib
import json
import os
import sys
import time
from typing import Any

# Before gRPC is imported, which would write a line for each handshake that fails, also of strangers at a listener.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from realtime_service.cli import connection, printing
from realtime_service.client import DEFAULT_DEADLINE, CallError
from realtime_service.client.calls import ScoreOptions
from shared_model import startup
from shared_model.errors import BadInput, TandemError
from shared_model.types import TOP_K, Priority, ServingPath

_EXIT_STATUS = "exit status: 0 done, 1 the call failed, 2 wrong arguments or settings, or Redis not reached"
_DEFAULT_MS = round(1000 * DEFAULT_DEADLINE)
_LANES = [it.value for it in (ServingPath.LATENCY, ServingPath.DYNAMIC, ServingPath.THROUGHPUT)]

Commands = Any  # argparse's own class for subparsers is private


def main(arguments: list[str] | None = None) -> int:
    startup.begin()
    args = _parser().parse_args(arguments)
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
        return status
    except TandemError as error:
        print(f"realtime_service {args.command}: {error}", file=sys.stderr)
        return 2
    except CallError as error:
        print(f"realtime_service {args.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python flushes again at its exit, which would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _serve(args: argparse.Namespace) -> int:
    from realtime_service.process import main as process

    return process.serve(
        grpc_address=args.address,
        metrics_address=args.metrics,
        lanes=args.lanes,
        insecure=args.insecure,
        workers=args.workers,
        reflection="true" if args.reflection else None,
    )


def _call(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    options: ScoreOptions = {
        "timeout_ms": args.timeout_ms,
        "priority": Priority(args.priority),
        "top_k": args.top_k,
        "release": args.release,
        "model": args.model,
        "lane": args.lane,
    }
    with connection.client(args, args.caller) as client:
        answer = client.score(args.text, **options)
        if args.json:
            print(json.dumps(printing.answer_data(answer)))
            return
        print(printing.answer(answer, time.perf_counter() - started))
        # A failure here does not affect the printed answer.
        with contextlib.suppress(CallError):
            if policy := printing.operators_policy(client.describe().operators_policy):
                print(f"  {policy}")


def _chat(args: argparse.Namespace) -> None:
    from realtime_service.cli import chat

    with connection.client(args) as client:
        try:
            chat.chat(client, chat.typed(print), print, args.timeout_ms, args.model)
        except KeyboardInterrupt:
            # The prompt of the shell gets a line of its own.
            print()


def _describe(args: argparse.Namespace) -> None:
    with connection.client(args) as client:
        described = client.describe(model=args.model)
    print(json.dumps(printing.description_data(described)) if args.json else printing.description(described))


def _top(args: argparse.Namespace) -> None:
    from realtime_service.cli import top

    top.watch(args.metrics.split(","), connection.metrics_reader(args), args.seconds, args.frames, print)


def _show_policy(args: argparse.Namespace) -> None:
    from realtime_service.cli import policy_command

    if not args.brief:
        print(policy_command.show())
    elif line := printing.operators_policy(policy_command.by_operators()):
        print(line)


def _set_policy(args: argparse.Namespace) -> None:
    from realtime_service.cli import policy_command

    print(policy_command.set_(args.assignments))


def _reset_policy(args: argparse.Namespace) -> None:
    from realtime_service.cli import policy_command

    if not (args.names or args.all):
        raise BadInput("reset", "name the numbers to reset (`policy show` lists them), or give --all for every one")
    print(policy_command.reset_all() if args.all else policy_command.reset(args.names))


def _list_dead_letters(args: argparse.Namespace) -> None:
    from realtime_service.cli import dead_letters

    for line in dead_letters.listed(args.count):
        print(line)


def _replay_dead_letters(args: argparse.Namespace) -> None:
    from realtime_service.cli import dead_letters

    print(f"{dead_letters.replay(args.ids or None)} accepted again")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m realtime_service", description=__doc__, epilog=_EXIT_STATUS)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_serve(commands)
    _add_call(commands)

    more = "Each line is scored. `help` explains; quit, exit, Ctrl-D and Ctrl-C leave."
    example = "chat --timeout-ms 200"
    chat = _add(commands, "chat", _chat, "type to the bot: intent, path and milliseconds of each line", more, example)
    _add_timeout(chat, f"milliseconds the bot may take for an answer (default: {_DEFAULT_MS})")
    _add_model(chat)
    connection.add_to(chat)

    more = "Its release, lanes with targets and state, the operators' policy, releases and replicas."
    describe = _add(commands, "describe", _describe, "print what a service serves", more, "describe --json")
    _add_model(describe)
    _add_json(describe)
    connection.add_to(describe)

    more = "Rates, p95 and targets of the latency and the throughput lane, of all replicas together. Ctrl-C leaves."
    example = "top --metrics 127.0.0.1:9464,127.0.0.1:9465"
    top = _add(commands, "top", _top, "show both service levels side by side, as they change", more, example)
    connection.add_metrics_to(top)

    _add_policy(commands)
    _add_dead_letters(commands)
    return parser


def _add(commands: Commands, name: str, run: Any, summary: str, more: str, example: str) -> argparse.ArgumentParser:
    """`summary`: in the list of commands; `more` follows it in this command's description."""
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n{more}",
        epilog=f"example:\n  python -m realtime_service {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(run=run)
    return added


def _add_serve(commands: Commands) -> None:
    more = (
        "Every number is a setting, in the environment or in the TOML file that TANDEM_CONFIG names\n"
        "(realtime_service/README.md); a flag overrides both. Without REDIS_URL the service starts a Redis of its own."
    )
    example = "serve --lanes latency,dynamic --address 127.0.0.1:50052 --metrics 127.0.0.1:9552"
    serve = _add(commands, "serve", _serve, "answer calls until SIGTERM or Ctrl-C", more, example)
    serve.add_argument("--address", metavar="HOST:PORT", help="where gRPC listens (default 127.0.0.1:50051)")
    serve.add_argument("--metrics", metavar="HOST:PORT", help="where Prometheus scrapes (default 127.0.0.1:9464)")
    serve.add_argument(
        "--lanes", help="some of latency,dynamic,throughput, or none for a router (default: all of them)"
    )
    serve.add_argument("--workers", metavar="N", help="supervised processes behind one port (default: from the cores)")
    serve.add_argument(
        "--reflection", action="store_true", help="serve gRPC reflection (default: on a loopback address)"
    )
    serve.add_argument(
        "--insecure", action="store_true", help="listen beyond loopback without TLS (default: refused there)"
    )


def _add_call(commands: Commands) -> None:
    more = "Prints the best labels, the path and its reason, and the operators' policy where one is in force."
    example = 'call "my card has not arrived" --timeout-ms 80'
    call = _add(commands, "call", _call, "score one text and print the answer", more, example)
    call.add_argument("text", help="the text, 1 byte to 64 KiB")
    lanes = "below 100 the latency lane, above 1000 the throughput lane, unless the policy says otherwise"
    _add_timeout(call, f"milliseconds to wait for an answer; {lanes} (default: {_DEFAULT_MS}, for no lane)")
    call.add_argument(
        "--priority",
        choices=[p.value for p in Priority],
        default=Priority.UNSPECIFIED.value,
        help="real_time: the latency lane; batch: the throughput lane (default %(default)s)",
    )
    call.add_argument(
        "--top-k", type=int, choices=range(1, TOP_K + 1), default=3, help="labels to print (default %(default)s)"
    )
    call.add_argument(
        "--caller", default="", metavar="NAME", help="who calls, for quotas and canary (default: the host)"
    )
    call.add_argument(
        "--lane", default="", choices=_LANES, help="a lane, whatever the rules say (default: by the rules)"
    )
    call.add_argument(
        "--release", default="", metavar="ID", help="a release to be answered by (default: the active one)"
    )
    _add_model(call)
    _add_json(call)
    connection.add_to(call)


def _add_policy(commands: Commands) -> None:
    summary = "look at or change how running replicas route; acts within a second"
    policy = commands.add_parser("policy", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    actions = policy.add_subparsers(dest="action", required=True)

    more = "Reads Redis (REDIS_URL, else the one of TANDEM_STATE), as do `set` and `reset`."
    summary = "print the policy, and which numbers operators have set"
    show = _add(actions, "show", _show_policy, summary, more, "policy show --brief")
    show.add_argument("--brief", action="store_true", help="one line; nothing where operators have set nothing")

    more = (
        "Names are those of `policy show`, and quota.CALLER for one caller; times are in milliseconds, quotas in\n"
        "texts a second (0: no limit). All replicas follow within a second, also after a restart, until `policy reset`."
    )
    example = "policy set quota.back-office=500"
    change = _add(actions, "set", _set_policy, "set numbers of the policy for all replicas", more, example)
    change.add_argument("assignments", nargs="+", metavar="NAME=NUMBER", help="a number of the policy and its value")

    more = "They are then as the settings of each replica say."
    reset = _add(actions, "reset", _reset_policy, "undo what operators have set", more, "policy reset --all")
    which = reset.add_mutually_exclusive_group()
    which.add_argument("names", nargs="*", default=[], metavar="NAME", help="numbers that operators have set")
    which.add_argument("--all", action="store_true", help="every number, also where the stored policy is damaged")


def _add_dead_letters(commands: Commands) -> None:
    summary = "deferred work that was given up because its consumers died"
    letters = commands.add_parser("dead-letters", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    actions = letters.add_subparsers(dest="action", required=True)

    more = "One line each, tab-separated: request id, when it was given up (UTC), texts, how often it was taken."
    example = "dead-letters list --count 5"
    listed = _add(actions, "list", _list_dead_letters, "print dead letters, oldest first", more, example)
    listed.add_argument("--count", type=_positive, default=20, metavar="N", help="lines (default %(default)s)")

    more = (
        "It is done as if it had never been taken, recorded in the audit and, where operators have keys, signed. An id "
        "that is no dead letter's: none is accepted."
    )
    example = "dead-letters replay ticket-4711"
    replayed = _add(actions, "replay", _replay_dead_letters, "accept dead letters again", more, example)
    which = replayed.add_mutually_exclusive_group(required=True)
    which.add_argument("ids", nargs="*", default=[], metavar="ID", help="request ids, as `list` prints them")
    which.add_argument("--all", action="store_true", help="every dead letter")


def _add_timeout(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--timeout-ms", type=_positive, metavar="MS", help=meaning)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", metavar="NAME", help="the model to ask (default: the default model)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one line of JSON, for programs")


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"is {number}, must be positive")
    return number


if __name__ == "__main__":
    sys.exit(main())
