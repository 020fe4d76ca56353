"""Reads a Hugging Face model folder, on disk or fetched from the hub.

Only data is read: safetensors weights, JSON and vocabularies; a model's own code is never run.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_model.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
#: Vocabulary files from which a missing tokenizer.json is converted.
_VOCABULARIES = ("vocab.txt", "vocab.json", "*.model")
#: Files fetched from the hub: configuration, tokenizer and safetensors weights.
_WANTED = ["*.json", "merges.txt", "vocab.txt", "*.model", "model*.safetensors"]
#: Supported modules of a sentence-transformers model.
_SENTENCE_PARTS = {"Transformer", "Pooling", "Normalize"}
_LEGACY_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


def find(model: str | Path) -> Path:
    """The folder `model`, or the folder of the hub's model of that name, fetched. Raises: BadInput."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(str(model), allow_patterns=_WANTED))
    except errors.HFValidationError as error:
        raise BadInput(str(model), "is no folder here, and no name of a model on the hub") from error
    except errors.HfHubHTTPError as error:
        raise BadInput(str(model), f"is no folder here, and the hub refuses: {brief(error)}") from error
    except Exception as error:
        problem = f"is no folder here, and the hub cannot be reached: {brief(error)}"
        raise BadInput(str(model), f"{problem}; fetch the model elsewhere and name its folder") from error


def read_json(folder: Path, name: str, kind: type = dict) -> Any:
    """The document in a JSON file, of type `kind`; None if there is no such file. Raises: BadInput."""
    try:
        document = json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadInput(str(folder / name), "is not JSON") from error
    if not isinstance(document, kind):
        raise BadInput(str(folder / name), f"holds no JSON {kind.__name__}")
    return document


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`. Raises: BadInput if it is missing, or if the model requires its own code."""
    config = read_json(folder, "config.json")
    if config is None:
        raise BadInput(str(folder), "has no config.json; it is no Hugging Face model folder")
    if not isinstance(config.get("model_type"), str):
        raise BadInput(str(folder / "config.json"), "names no model_type")
    tokenizer = read_json(folder, "tokenizer_config.json") or {}
    if "auto_map" in config or "auto_map" in tokenizer:
        raise BadInput(str(folder), "brings code of its own (auto_map), which is never run; use a model without")
    # The author's path is private, and would change the release's id.
    return {key: value for key, value in config.items() if key != "_name_or_path"}


def read_pooling(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The pooling of an encoder's sentence embedding, `mean` or `cls`; None for a sequence classifier.

    Raises: BadInput for any other model or pooling.
    """
    architecture = "".join((config.get("architectures") or [""])[:1])
    if architecture.endswith("ForSequenceClassification"):
        return None
    parts = read_json(folder, "modules.json", list)
    if parts is None and not architecture.endswith("Model"):
        raise BadInput(str(folder), f"is neither a sequence classifier nor an encoder: {architecture or 'unnamed'}")
    named = [part.get("type") if isinstance(part, dict) else part for part in parts or []]
    kinds = [str(name).rpartition(".")[2] for name in named]
    if other := [kind for kind in kinds if kind not in _SENTENCE_PARTS]:
        raise BadInput(str(folder / "modules.json"), f"a {other[0]} layer has no place in a release")
    name = "1_Pooling/config.json"
    options = read_json(folder, name) or {"pooling_mode": "mean"}
    switched_on = [option for option, on in options.items() if option.startswith("pooling_mode_") and on]
    modes = options.get("pooling_mode") or [_LEGACY_POOLING.get(option, option) for option in switched_on]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in ("mean", "cls"):
        raise BadInput(str(folder / name), f"pooling by {' and '.join(modes)} is not supported, only by mean or cls")
    return str(modes[0])


def read_weights(folder: Path) -> tuple[dict[str, "Tensor"], str]:
    """All tensors of the safetensors files, and their sha256. Raises: BadInput.

    Several files have the sha256 of the list that `sha256sum` prints for them.
    """
    import safetensors.torch

    tensors: dict[str, Tensor] = {}
    digests: dict[str, str] = {}
    for name in _weight_files(folder):
        try:
            data = (folder / name).read_bytes()
            tensors |= safetensors.torch.load(data)
        except (OSError, safetensors.SafetensorError) as error:
            raise BadInput(str(folder / name), f"cannot be read: {brief(error)}") from error
        digests[name] = hashlib.sha256(data).hexdigest()
    if list(digests) == [_WEIGHTS]:
        return tensors, digests[_WEIGHTS]
    listing = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    return tensors, hashlib.sha256(listing.encode()).hexdigest()


def _weight_files(folder: Path) -> list[str]:
    if (folder / _WEIGHTS).exists():
        return [_WEIGHTS]
    index = read_json(folder, _INDEX)
    if index is None:
        pickled = " (its pytorch_model.bin may hold code)" if list(folder.glob("pytorch_model*.bin")) else ""
        raise BadInput(
            str(folder),
            f"has no {_WEIGHTS}{pickled}; where you trust it, load it with transformers and save_pretrained() it again",
        )
    try:
        names = sorted(set(index["weight_map"].values()))
    except (TypeError, KeyError, AttributeError) as error:
        raise BadInput(str(folder / _INDEX), "has no weight_map") from error
    if outside := [name for name in names if Path(name).name != name]:
        raise BadInput(str(folder / _INDEX), f"{outside[0]!r} is not a file of this folder")
    return names


def read_tokenizer(folder: Path) -> bytes:
    """The folder's tokenizer.json, or one converted from its vocabulary. Raises: BadInput."""
    import tokenizers

    path = folder / "tokenizer.json"
    # Without a vocabulary, transformers would return an empty tokenizer.
    if not path.exists() and not any(list(folder.glob(pattern)) for pattern in _VOCABULARIES):
        raise BadInput(str(folder), "has no tokenizer: neither tokenizer.json nor a vocabulary")
    try:
        if path.exists():
            data = path.read_bytes()
        else:
            from transformers import AutoTokenizer

            converted = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            data = str(converted.backend_tokenizer.to_str()).encode()
        tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:
        raise BadInput(str(folder), f"its tokenizer cannot be used: {brief(error)}") from error
    return data


def brief(error: Exception) -> str:
    """The first line of a library's error, without the advice that follows it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
