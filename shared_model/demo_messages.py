"""Generates messages: the demo's archive, and the texts of calibration and of the gate.

Seeded and free of third-party text. Lengths, repetition and typing errors resemble those of a bank's chatbot: most
messages are a sentence, some are one word, a few are letters of complaint; about one in eight repeats another.
"""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta

from shared_model.objects import Location, open_objects

#: (subjects, sentence templates). Any subject fits any template.
Topic = tuple[tuple[str, ...], tuple[str, ...]]
_TOPICS: tuple[Topic, ...] = (
    (
        ("card", "new card", "replacement card", "debit card", "bank card"),
        (
            "when will my {s} get here",
            "I ordered a {s} {t} and nothing came",
            "my {s} still isn't in the mailbox",
            "is there a way to follow where my {s} is",
            "can you send the {s} faster, I need it by {d}",
            "how do I switch on my {s}",
            "the {s} arrived, what do I do to start using it",
            "someone stole my {s}, please block it",
            "I left my {s} in {p} and can't find it any more",
            "the machine in {p} kept my {s}",
            "my {s} won't work in {p}",
            "the {s} gets declined every time I pay",
            "contactless on the {s} stopped working {t}",
            "when does my {s} run out",
            "can I have a second {s} for my daughter",
            "do you deliver the {s} to {p}",
            "I want the {s} in a currency other than euros",
            "can I link the {s} again after I found it",
        ),
    ),
    (
        ("PIN", "passcode", "password", "security code"),
        (
            "I forgot my {s}",
            "how can I change the {s}",
            "I typed the {s} wrong three times and now it's locked",
            "where do I find my {s}",
            "is it possible to set a new {s} from abroad",
            "the app keeps saying my {s} is wrong although it isn't",
            "somebody else knows my {s}, what now",
        ),
    ),
    (
        ("transfer", "payment", "bank transfer", "transaction"),
        (
            "my {s} of {a} hasn't arrived",
            "why is the {s} from {t} still pending",
            "the {s} to {n} failed and I don't know why",
            "how long does a {s} to {p} take",
            "can I stop a {s} I made {t}",
            "what does a {s} to {p} cost",
            "I sent a {s} to the wrong account",
            "the {s} was declined, there is enough money though",
            "there is a {s} of {a} I never made",
            "I was charged twice for one {s}",
            "why did you take a fee of {a} for the {s}",
            "the person I sent the {s} to says it isn't there",
            "is there a limit for one {s}",
            "the {s} came back to my account, why",
        ),
    ),
    (
        ("cash machine", "ATM", "cashpoint"),
        (
            "the {s} in {p} gave me only {a}",
            "which {s} can I use abroad",
            "what does it cost to use a {s} in {p}",
            "the {s} took my money and paid out nothing",
            "I can't get cash out of the {s}",
            "there's a withdrawal at a {s} I didn't make",
            "the exchange rate at the {s} was bad",
            "the money from the {s} is still shown as pending",
        ),
    ),
    (
        ("top-up", "deposit", "cheque", "salary"),
        (
            "my {s} isn't showing",
            "the {s} of {a} was reversed, why",
            "is there a fee for a {s} by card",
            "how do I set up a {s} every month",
            "can my employer pay the {s} into this account",
            "what is the highest {s} I can make",
            "I made a {s} {t}, the balance didn't move",
            "my {s} failed, is the money lost",
            "can I do the {s} with Apple Pay or Google Pay",
            "please verify my {s}, it hangs",
        ),
    ),
    (
        ("refund", "chargeback", "money back"),
        (
            "where is my {s} from {n}",
            "how do I ask for a {s}",
            "{n} says the {s} was sent {t}, I don't see it",
            "I bought something for {a} and want a {s}",
            "the {s} is less than I paid",
        ),
    ),
    (
        ("account", "profile", "app", "phone"),
        (
            "how do I close my {s}",
            "I can't get into the {s} since {t}",
            "how old must one be to open an {s}",
            "my {s} was lost, can anybody use it to pay",
            "please change the address on my {s}",
            "why can't you verify my identity on the {s}",
            "what papers do you need to verify the {s}",
            "my name changed, how do I edit it in the {s}",
            "is the {s} available in {p}",
            "I don't want to prove who I am for an {s}",
            "the {s} shows the wrong balance after {t}",
        ),
    ),
    (
        ("euros", "dollars", "pounds", "yen", "francs"),
        (
            "can I hold {s} with you",
            "how do I change {a} into {s}",
            "the rate for {s} looks wrong today",
            "what does exchanging {s} cost",
            "I was charged extra for paying in {s} in {p}",
            "do you support {s} and other currencies",
            "which currencies can I be paid in besides {s}",
        ),
    ),
    (
        ("virtual card", "disposable card", "gift card"),
        (
            "how do I get a {s}",
            "how many {s}s may I have",
            "the {s} is refused by {n}",
            "what is a {s} good for",
            "can a {s} be topped up",
        ),
    ),
)
#: Of a day on which a new product is out: people write about virtual cards.
NEW_PRODUCT = _TOPICS[-1:]
_TIMES = (
    "yesterday",
    "two days ago",
    "last week",
    "on Monday",
    "this morning",
    "a month ago",
    "an hour ago",
    "on the 3rd",
)
_PLACES = (
    "Spain",
    "the US",
    "London",
    "a petrol station",
    "Lisbon",
    "the supermarket",
    "Japan",
    "an airport",
    "Poland",
)
_NAMES = (
    "my landlord",
    "a friend",
    "the shop",
    "my sister",
    "an online store",
    "the hotel",
    "my employer",
    "the garage",
)
_DAYS = ("Friday", "tomorrow", "the weekend", "next week", "Christmas", "the 15th")
_OPENERS = ("",) * 4 + ("Hi, ", "Hello, ", "hey ", "Good morning. ", "Please help, ", "Sorry to bother you, ", "ok so ")
_CLOSERS = ("",) * 5 + (" thanks", " Please advise.", " It is urgent!", " Can you check?", " What should I do?", " :(")
#: Short messages, the most frequent first.
COMMON = (
    "thanks", "ok", "yes", "no", "hello", "hi", "hello?", "thank you!", "are you there", "agent please", "help",
    "I want to talk to a person", "that didn't work", "what?", "still waiting", "good morning", "same problem again",
    "where is my card", "my transfer is pending", "how do I change my PIN", "got it, thanks", "bye", "?", "never mind",
)  # fmt: skip
_LINKS = (" And also: ", " Besides that, ", ". ", " because ", " - ", ", and ", ". To explain: ", ". Then ")


def texts(seed: int, topics: Sequence[Topic] = _TOPICS) -> Iterator[str]:
    """An endless, deterministic stream of messages for a seed."""
    return (text for text, _ in messages(seed, topics))


def messages(seed: int, topics: Sequence[Topic] = _TOPICS) -> Iterator[tuple[str, str]]:
    """Such a stream on some topics: each text, and the same before typing errors and irregular capitals."""
    draw = random.Random(seed)
    # Common messages repeat with Zipf-like weights.
    weights = [1 / rank for rank in range(1, len(COMMON) + 1)]
    while True:
        kind = draw.random()
        if kind < 0.12:
            common = draw.choices(COMMON, weights)[0]
            yield common, common
            continue
        sentences = 1 if kind < 0.82 else draw.randint(2, 3) if kind < 0.97 else draw.randint(5, 24)
        body = _sentence(draw, topics)
        for _ in range(sentences - 1):
            body += draw.choice(_LINKS) + _sentence(draw, topics)
        tidy = draw.choice(_OPENERS) + body + draw.choice(("", "?", ".", "")) + draw.choice(_CLOSERS)
        yield _untidy(draw, tidy), tidy


def _sentence(draw: random.Random, topics: Sequence[Topic]) -> str:
    subjects, sayings = draw.choice(topics)
    return draw.choice(sayings).format(
        s=draw.choice(subjects),
        t=draw.choice(_TIMES),
        d=draw.choice(_DAYS),
        p=draw.choice(_PLACES),
        n=draw.choice(_NAMES),
        a=f"{draw.choice('€$£')}{draw.choice((5, 10, 20, 49.99, 100, 250, 1200)) * draw.randint(1, 9):g}",
    )


def _untidy(draw: random.Random, text: str) -> str:
    """Add typing errors and irregular capitals."""
    style = draw.random()
    if style < 0.25:
        text = text.lower()
    elif style < 0.28:
        text = text.upper()
    elif style < 0.60:
        text = text[:1].upper() + text[1:]
    if draw.random() < 0.12 and len(text) > 8:
        at = draw.randrange(1, len(text) - 2)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text


#: Invalid lines, one of each kind found in real archives. The nightly run must quarantine them.
DAMAGED_LINES = (
    b"",
    b'{"id": "cut-off',
    b'["not", "an", "object"]',
    b'{"id": "no-text"}',
    b'{"id": "bad", "text": "\xff\xfe"}',
)

#: The demo's days. Fixed, so that a second run of the demo asks for the same partitions.
FIRST_DAY = date(2026, 1, 14)


def write_archive(
    folder: Location,
    messages: int,
    days: int = 2,
    seed: int = 7,
    damaged: bool = True,
    first_day: date = FIRST_DAY,
    topics: Sequence[Topic] = _TOPICS,
) -> list[date]:
    """Write `messages` messages as `folder/ds=YYYY-MM-DD/messages.jsonl`, for `days` days from `first_day` on.

    With `damaged`, each day also holds DAMAGED_LINES. A day is written atomically; an existing day is kept. Returns the
    days.
    """
    stream = texts(seed, topics)
    written = [first_day + timedelta(days=day) for day in range(days)]
    for index, day in enumerate(written):
        count = messages // days + (index < messages % days)
        lines = [_line(day, number, next(stream), count) for number in range(count)]
        if damaged:
            for number, line in enumerate(DAMAGED_LINES):
                lines.insert((number + 1) * len(lines) // 7, line)
        days_folder, name = open_objects(folder), f"ds={day}/messages.jsonl"
        if days_folder.find(name) is None:
            days_folder.put(name, b"\n".join(lines) + b"\n")
    return written


def _line(day: date, number: int, text: str, count: int) -> bytes:
    at = datetime(day.year, day.month, day.day) + timedelta(seconds=86_400 * number / count)
    record = {"id": f"{day:%Y%m%d}-{number:06d}", "ts": f"{at:%Y-%m-%dT%H:%M:%S}Z", "text": text}
    return json.dumps(record, ensure_ascii=False).encode()
