"""messages: an archive of demo messages, or labelled ones."""

import argparse
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from shared_model import demo_labels, demo_messages
from shared_model.commands import common
from shared_model.objects import open_objects
from shared_model.settings import StateSettings


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    messages = common.add_command(
        commands,
        "messages",
        _messages,
        help="write demo messages as an archive of days",
        more="They go to the folder that TANDEM_MESSAGES names, else to STATE/messages; a day that is there stays. Or, "
        "with --labelled, examples to train heads on.",
        example="--count 2000 --days 1 --first-day 2026-01-20",
    )
    messages.add_argument("--count", type=int, default=20_000, help="messages of all days together (default: 20000)")
    messages.add_argument("--days", type=int, default=2, help="how many days to write (default: 2)")
    messages.add_argument(
        "--first-day",
        type=date.fromisoformat,
        default=demo_messages.FIRST_DAY,
        metavar="YYYY-MM-DD",
        help="the first of them (default: %(default)s)",
    )
    messages.add_argument("--seed", type=int, default=7, help="the same seed makes the same messages (default: 7)")
    messages.add_argument(
        "--labelled",
        type=Path,
        metavar="DIR",
        help="write mood.csv (for a multi_label head) and in_scope.csv with the generator's labels to DIR "
        "(default: an archive)",
    )
    messages.add_argument("--clean", action="store_true", help="without the damaged lines a real archive has")


def _messages(args: argparse.Namespace, state: StateSettings) -> None:
    common.check_count("--count", args.count)
    common.check_count("--days", args.days)
    if args.labelled:
        print(f"written: {', '.join(map(str, demo_labels.write(args.labelled, args.count, args.seed)))}")
        return
    names = {f"ds={args.first_day + timedelta(days=day)}/messages.jsonl" for day in range(args.days)}
    before = {it.path.partition("/")[0] for it in open_objects(state.messages_dir).list() if it.path in names}
    days = demo_messages.write_archive(
        state.messages_dir, args.count, args.days, args.seed, not args.clean, args.first_day
    )
    written = [f"ds={day}" for day in days if f"ds={day}" not in before]
    there = [f"ds={day}" for day in days if f"ds={day}" in before]
    if not there:
        print(f"{args.count} messages in {state.messages_dir}: {', '.join(written)}")
        return
    if written:
        print(f"written to {state.messages_dir}: {', '.join(written)}")
    print(f"{', '.join(there)} in {state.messages_dir}: there already; nothing written")
