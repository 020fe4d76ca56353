"""Train a linear head on frozen sentence embeddings, from a CSV of text and label."""

import csv
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from tqdm import tqdm

from shared_model.encoding import Encoder, collate, plan_batches
from shared_model.errors import BadInput

#: Inverse regularisation strength on unit-length embeddings. Five-fold cross-validation on BANKING77's training split:
#: accuracy is flat around it (5: 91.70 %, 10: 92.08 %, 20: 92.06 %, 40: 91.99 %).
INVERSE_REGULARISATION = 20.0


@dataclass(frozen=True)
class Examples:
    texts: list[str]
    labels: list[str]
    sha256: str


@dataclass(frozen=True)
class Head:
    """weight: fp32 (labels, hidden). bias: fp32 (labels,)."""

    labels: tuple[str, ...]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.numpy.save_file({"weight": self.weight, "bias": self.bias}, folder / "head.safetensors")
        (folder / "labels.json").write_text(json.dumps(self.labels, indent=1) + "\n")


def load_head(folder: Path) -> Head:
    """Raises: BadInput if the folder holds no head that `save` wrote."""
    try:
        tensors = safetensors.numpy.load_file(folder / "head.safetensors")
        labels = tuple(json.loads((folder / "labels.json").read_text()))
        head = Head(labels, tensors["weight"], tensors["bias"])
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(str(folder), "its head is damaged; train it again") from error
    if not len(head.labels) == len(head.weight) == len(head.bias):
        raise BadInput(str(folder), f"has {len(head.labels)} labels for {len(head.weight)} outputs; train it again")
    return head


def read_examples(path: Path) -> Examples:
    """Read a CSV whose first column is the text and whose second is the label, with a header line."""
    raw = path.read_bytes()
    try:
        texts, labels = parse_examples(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise BadInput(str(path), "is not UTF-8") from error
    return Examples(texts, labels, hashlib.sha256(raw).hexdigest())


def parse_examples(contents: str, source: str) -> tuple[list[str], list[str]]:
    """Texts and labels of a CSV. Raises: BadInput naming `source` and the line."""
    # The csv module must see line ends as they are: a quoted text may hold some.
    reader = csv.reader(io.StringIO(contents, newline=""), strict=True)
    texts, labels = [], []
    try:
        next(reader, None)
        for row in reader:
            if len(row) < 2 or not row[0].strip() or not row[1].strip():
                raise BadInput(f"{source}:{reader.line_num}", "needs a text and a label")
            texts.append(row[0])
            labels.append(row[1])
    except csv.Error as error:
        raise BadInput(f"{source}:{reader.line_num}", str(error)) from error
    if not texts:
        raise BadInput(source, "has no examples under its header line")
    return texts, labels


def train(encoder_folder: Path, examples: Examples, max_tokens: int) -> Head:
    """Fit multinomial logistic regression on the embeddings of `examples`. Raises: BadInput for a single label."""
    if len(set(examples.labels)) < 2:
        raise BadInput("label", "training needs at least two labels")
    # Training is the only use of scikit-learn; the serving process never loads it.
    from sklearn.linear_model import LogisticRegression

    vectors = embed(encoder_folder, examples.texts, max_tokens)
    model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000)
    model.fit(vectors, examples.labels)
    weight, bias = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        # Of two labels scikit-learn keeps one logit z; softmax of (-z/2, z/2) says the same of both.
        weight, bias = np.vstack([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    labels = tuple(str(label) for label in model.classes_)
    return Head(labels, np.ascontiguousarray(weight, dtype=np.float32), bias.astype(np.float32))


def embed(encoder_folder: Path, texts: list[str], max_tokens: int) -> NDArray[np.float32]:
    """Unit-length mean-pooled embeddings, fp32 (texts, hidden)."""
    import torch

    from shared_model.releases.convert import classifier_of

    model = classifier_of(encoder_folder, None)
    encoder = Encoder((encoder_folder / "tokenizer.json").read_bytes(), max_tokens, release="")
    encodings = encoder.encode_many(texts)
    vectors = np.empty((len(texts), model.head.in_features), dtype=np.float32)
    with torch.inference_mode(), tqdm(total=len(texts), desc="embedding", unit="text", disable=None) as progress:
        for rows in plan_batches([e.tokens for e in encodings], max_rows=64, token_budget=2048):
            batch = collate([encodings[row] for row in rows])
            vectors[rows] = model.embed(torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)).numpy()
            progress.update(len(rows))
    return vectors
