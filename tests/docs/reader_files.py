"""The files that README takes for granted of a reader: a model, labelled texts, a sample of what the model will see."""

import csv
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

from tests.shared_model import tiny_models

_OPENINGS = ("please help", "hello", "a question", "good morning", "it is urgent", "for the second time")
_SUBJECTS = {
    "card": ("my card has not arrived", "the card was stolen", "where is my card", "the card does not work"),
    "transfer": ("the transfer failed", "a transfer is pending", "how do I transfer money", "my transfer was declined"),
    "pin": ("I forgot my pin", "how do I change my pin", "my pin is blocked", "the pin is wrong"),
}
_CLOSINGS = ("", "thanks", "today", "again", "since Monday", "what now", "can you look")


def labelled() -> Iterator[tuple[str, str]]:
    """504 texts whose label can be learnt from one word."""
    labels = list(_SUBJECTS)
    for opening, place, closing in itertools.product(_OPENINGS, range(4), _CLOSINGS):
        for label in labels:
            yield f"{opening} {_SUBJECTS[label][place]} {closing}".strip(), label


def write(folder: Path) -> None:
    """Write my-bert/, intents.csv, held-out.csv and sample.jsonl."""
    examples = list(labelled())
    trained, held_out = examples[::2], examples[1::2]
    for name, rows in (("intents.csv", trained), ("held-out.csv", held_out)):
        with open(folder / name, "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    (folder / "sample.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in examples))
    _train(tiny_models.make(folder / "my-bert", "bert", labels=list(_SUBJECTS)), trained)


def _train(folder: Path, examples: list[tuple[str, str]]) -> None:
    """Teach a model of random weights these examples, in seconds."""
    torch.manual_seed(5)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer([text for text, _ in examples], return_tensors="pt", padding=True)
    wanted = torch.tensor([model.config.label2id[label] for _, label in examples])
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(**inputs).logits, wanted).backward()
        optimiser.step()
    model.eval()
    model.save_pretrained(folder)
