"""messages: an archive of demo messages."""

import argparse
from datetime import date
from typing import Any

from shared_model import demo_messages
from shared_model.settings import StateSettings


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    messages = commands.add_parser("messages", help="write demo messages as an archive of days")
    messages.set_defaults(run=_messages)
    messages.add_argument("--count", type=int, default=20_000)
    messages.add_argument("--days", type=int, default=2)
    messages.add_argument("--first-day", type=date.fromisoformat, default=demo_messages.FIRST_DAY)
    messages.add_argument("--seed", type=int, default=7)
    messages.add_argument("--clean", action="store_true", help="without the damaged lines a real archive has")


def _messages(args: argparse.Namespace, state: StateSettings) -> None:
    days = demo_messages.write_archive(
        state.messages_dir, args.count, args.days, args.seed, not args.clean, args.first_day
    )
    print(f"{args.count} messages in {state.messages_dir}: {', '.join(f'ds={day}' for day in days)}")
