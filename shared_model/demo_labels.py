"""Labelled demo messages: the moods of messages to a bank, and messages that are no business of a bank.

The labels are the generator's own: it knows which phrases it put into a message, and from which topics.
"""

import csv
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from shared_model import demo_messages
from shared_model.demo_messages import Topic
from shared_model.storage import atomic_write

#: Mood → phrases in lower case. A message has every mood of which it holds a phrase.
_MOODS = {
    "polite": ("please", "sorry to bother", "thank", "good morning"),
    "upset": (
        " :(",
        "that didn't work",
        "still waiting",
        "same problem again",
        "i want to talk to a person",
        "took my money",
        "charged twice",
        "charged extra",
        "came back to my account",
        "wrong although it isn't",
        "there is enough money though",
        "i don't want to prove",
        "nothing came",
        "stopped working",
        "looks wrong",
        "gave me only",
        "was bad",
    ),
    "urgent": (
        "it is urgent",
        "i need it by",
        "please block it",
        "stole my",
        "knows my",
        "i never made",
        "i didn't make",
        "is the money lost",
        "can anybody use it",
    ),
}
#: Common messages on a topic of the bank; the others are small talk.
_BANKING = ("where is my card", "my transfer is pending", "how do I change my PIN")

_OTHER_TOPICS: tuple[Topic, ...] = (
    (
        ("rain", "snow", "sunshine", "wind", "fog"),
        ("will there be {s} in {p} on {d}", "how much {s} did {p} get {t}", "is {s} likely next week", "I love {s}"),
    ),
    (
        ("pasta", "soup", "an omelette", "bread", "pancakes", "a curry"),
        (
            "how do I cook {s}",
            "what goes well with {s}",
            "how long does {s} keep in the fridge",
            "a recipe for {s} without eggs",
            "I made {s} for {n} {t} and it was too salty",
        ),
    ),
    (
        ("the match", "the race", "the cup final", "the tournament"),
        ("who won {s} {t}", "when does {s} start", "which channel shows {s}", "was {s} in {p} any good"),
    ),
    (
        ("film", "song", "novel", "series", "game"),
        (
            "which {s} should I try next",
            "who wrote that {s}",
            "tell me a {s} like the one I liked {t}",
            "how does the {s} end",
            "{n} recommended a {s} set in {p}",
        ),
    ),
    (
        ("train", "bus", "ferry", "flight"),
        (
            "when does the next {s} to {p} leave",
            "is the {s} to {p} late today",
            "how long is the {s} ride to {p}",
            "which {s} goes to {p} on {d}",
        ),
    ),
    (
        ("history", "maths", "chemistry", "French"),
        ("help me with my {s} homework", "explain this {s} question to me", "what is on the {s} exam on {d}"),
    ),
    (
        ("dog", "cat", "rabbit", "parrot"),
        ("my {s} won't eat since {t}", "how old can a {s} get", "is chocolate bad for a {s}"),
    ),
    (
        ("headache", "cough", "fever", "sore knee"),
        ("what helps against a {s}", "I have had a {s} since {t}", "should I see a doctor about my {s}"),
    ),
    (
        ("roses", "tomatoes", "the lawn", "the hedge"),
        ("when do I water {s}", "how do I cut {s}", "{s} looked brown {t}", "is {d} too late to plant {s}"),
    ),
    (
        ("poem", "joke", "birthday speech", "story"),
        ("write me a {s} about {p}", "tell me a {s}", "I need a {s} for {n} by {d}"),
    ),
)  # fmt: skip


def moods(tidy: str) -> list[str]:
    """The moods of a message, by itself before typing errors."""
    return [mood for mood, phrases in _MOODS.items() if any(phrase in tidy.lower() for phrase in phrases)]


def mood_examples(seed: int) -> Iterator[tuple[str, str]]:
    """An endless stream of messages to a bank, each with its moods, joined by `|`; empty without any."""
    return ((text, "|".join(moods(tidy))) for text, tidy in demo_messages.messages(seed))


def scope_examples(seed: int) -> Iterator[tuple[str, str]]:
    """An endless stream of messages, half of them on topics of a bank: `yes`; of other topics, or small talk: `no`."""
    common = {text for text in demo_messages.COMMON if text not in _BANKING}
    for own, other in zip(demo_messages.messages(seed), demo_messages.messages(seed, _OTHER_TOPICS), strict=False):
        yield own[0], "no" if own[1] in common else "yes"
        yield other[0], "yes" if other[1] in _BANKING else "no"


def write(folder: Path, count: int, seed: int) -> list[Path]:
    """Write mood.csv and in_scope.csv, of the first `count` messages of each stream, each text once. Returns both."""
    streams = {"mood.csv": mood_examples(seed), "in_scope.csv": scope_examples(seed)}
    for name, stream in streams.items():
        lines = io.StringIO(newline="")
        csv.writer(lines).writerows([("text", "label"), *dict(islice(stream, count)).items()])
        atomic_write(folder / name, lines.getvalue().encode())
    return [folder / name for name in streams]
