"""An interactive session with the service: scores each typed line and shows the answer."""

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from protos.scoring.v1 import scoring_pb2
from realtime_service.cli.printing import ABSTAINED
from realtime_service.client import Answer, CallError, Client
from shared_model.types import HeadScore, Priority, Score

GREETING = "Each line you type is scored; `help` explains, `quit` leaves."
HELP = """\
  Type a message as a customer would: the best label of each head, its probability, the path that answered, and the
  time it took.
  help shows this; quit, exit, Ctrl-D or Ctrl-C leave."""
_LEAVE = {"quit", "exit"}
#: The first head, whose name no answer holds.
FIRST = ""


def chat(
    client: Client, lines: Iterable[str], say: Callable[[str], None], timeout_ms: int | None = None, model: str = ""
) -> None:
    """Score every line that is not blank, until the last one or `quit`. The error of a failed call is shown, and the
    chat goes on.

    `timeout_ms`: the timeout of each call; `model`: "" is the default one. Raises: CallError if no service answers at
    all.
    """
    outputs = kinds(client.describe(model=model))
    for text in filter(None, map(str.strip, lines)):
        command = text.removeprefix("/").lower()
        if command in _LEAVE:
            return
        if command == "help":
            say(HELP)
            continue
        started = time.perf_counter()
        try:
            answer = client.score(text, timeout_ms=timeout_ms, priority=Priority.REAL_TIME, model=model)
        except CallError as error:
            say(f"  {error}")
        else:
            milliseconds = 1000 * (time.perf_counter() - started)
            say(f"  {understood(answer, outputs)}  ({answer.path} path, {milliseconds:.1f} ms)")


def typed(say: Callable[[str], None]) -> Iterator[str]:
    """Lines of standard input until it ends, with a greeting and a prompt on a terminal."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Invalid UTF-8 is scored with replacement characters instead of ending the chat.
        sys.stdin.reconfigure(errors="replace")
    person = sys.stdin.isatty()
    if person:
        say(GREETING)
    while True:
        try:
            yield input("you> " if person else "")
        except EOFError:
            if person:
                # The prompt of the shell gets a line of its own.
                say("")
            return


def kinds(described: scoring_pb2.DescribeResponse) -> dict[str, str]:
    """Kind of output of each head by name, of the first by FIRST. An earlier version describes no heads."""
    return {FIRST: described.output, **{head.name: head.output for head in described.heads[1:]}}


def understood(answer: Answer, outputs: Mapping[str, str]) -> str:
    """Of each head the best label and its probability, all labels of several, all values, or how long the embedding is.

    `outputs`: as `kinds` has them.
    """
    (result,) = answer.results
    further = (f"{name}: {_understood(head, outputs.get(name, ''))}" for name, head in result.heads.items())
    return "; ".join([_understood(result, outputs[FIRST]), *further])


def _understood(result: Score | HeadScore, output: str) -> str:
    if result.vector:
        return f"embedding of {len(result.vector)} numbers"
    if output == "regression":
        return ", ".join(f"{value.name} {value.score:.3f}" for value in result.labels)
    shown = result.labels if output == "multi_label" else result.labels[:1]
    return ", ".join(f"{label.name} {label.score:.1%}" for label in shown) + (ABSTAINED if result.abstained else "")
