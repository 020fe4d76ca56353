"""Small Hugging Face folders with random weights and a real tokenizer, one family each, made in a second.

Weights are drawn ten times wider than transformers would: attention then tells tokens apart, and a wrong mask,
position or pooling shows in the first digit of the outputs.
"""

import itertools
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from shared_model import demo_messages

_WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_SPREAD = {"initializer_range": 0.2}
_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
#: More text than the corpus has: a piece that covers so much is in each vocabulary.
_ALWAYS = 10**9


def corpus() -> list[str]:
    return list(itertools.islice(demo_messages.texts(seed=5), 300))


def word_pieces(special: Sequence[str]) -> Tokenizer:
    """As BERT's."""
    normalizer, pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    counts = _pieces(normalizer.normalize_str, pre_tokenizer, continuing="##")
    vocabulary = [*special, *counts][:400]
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(vocabulary)}, unk_token="[UNK]"))  # noqa: S106 (a token of text)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def byte_pairs(special: Sequence[str]) -> Tokenizer:
    """As RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=list(special), initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def unigrams(special: Sequence[str], unknown: str) -> Tokenizer:
    """As the sentencepiece models of XLM-R and DeBERTa-v2."""
    pre_tokenizer = pre_tokenizers.Metaspace()
    counts = _pieces(str, pre_tokenizer)
    logarithms = [(piece, math.log(count / counts.total())) for piece, count in counts.items()]
    vocabulary = [*((token, 0.0) for token in special), *logarithms][:400]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special.index(unknown)))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _pieces(normalize: Callable[[str], str], pre_tokenizer: Any, continuing: str = "") -> Counter[str]:
    """Parts of the corpus's words and how often they occur, each character first, then those that cover most text.

    The trainers of WordPiece and Unigram break ties by a random hash: each of their runs would be another model.
    """
    counts = Counter[str]()
    covered = Counter[str]()
    words = Counter(word for text in corpus() for word, _ in pre_tokenizer.pre_tokenize_str(normalize(text)))
    for word, times in words.items():
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            piece = (continuing if start else "") + word[start:end]
            counts[piece] += times
            covered[piece] += times * (end - start) if end > start + 1 else _ALWAYS
    return Counter({piece: counts[piece] for piece in sorted(covered, key=lambda piece: (-covered[piece], piece))})


def _framed(tokenizer: Tokenizer, first: str, last: str, second_type: int = 0, between: str = "") -> Tokenizer:
    between = between or last
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {between} $B:{second_type} {last}:{second_type}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {first, last, *between.split()}],
    )
    return tokenizer


def _bert() -> tuple[PretrainedConfig, Tokenizer]:
    config = transformers.BertConfig(**_WIDTH, **_SPREAD, max_position_embeddings=64)
    return config, _framed(word_pieces(_BERT_TOKENS), "[CLS]", "[SEP]", second_type=1)


def _distilbert() -> tuple[PretrainedConfig, Tokenizer]:
    config = transformers.DistilBertConfig(
        dim=32, n_layers=2, n_heads=4, hidden_dim=48, **_SPREAD, max_position_embeddings=64
    )
    return config, _framed(word_pieces(_BERT_TOKENS), "[CLS]", "[SEP]")


def _roberta() -> tuple[PretrainedConfig, Tokenizer]:
    # Positions begin behind the padding id, so two of the 66 are never used.
    config = transformers.RobertaConfig(**_WIDTH, **_SPREAD, max_position_embeddings=66, type_vocab_size=1)
    return config, _framed(byte_pairs(_ROBERTA_TOKENS), "<s>", "</s>", between="</s> </s>")


def _xlm_roberta() -> tuple[PretrainedConfig, Tokenizer]:
    config = transformers.XLMRobertaConfig(**_WIDTH, **_SPREAD, max_position_embeddings=66, type_vocab_size=1)
    return config, _framed(unigrams(_ROBERTA_TOKENS, "<unk>"), "<s>", "</s>", between="</s> </s>")


def _deberta_v2() -> tuple[PretrainedConfig, Tokenizer]:
    config = transformers.DebertaV2Config(
        **_WIDTH,
        **_SPREAD,
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
        pooler_hidden_size=32,
        pooler_dropout=0,
        pooler_hidden_act="gelu",
    )
    return config, _framed(unigrams(_BERT_TOKENS, "[UNK]"), "[CLS]", "[SEP]")


def _mpnet() -> tuple[PretrainedConfig, Tokenizer]:
    config = transformers.MPNetConfig(**_WIDTH, **_SPREAD, max_position_embeddings=66, pad_token_id=1)
    tokenizer = word_pieces(("<s>", "<pad>", "</s>", "[UNK]", "<mask>"))
    return config, _framed(tokenizer, "<s>", "</s>", between="</s> </s>")


def _modernbert() -> tuple[PretrainedConfig, Tokenizer]:
    tokens = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    config = transformers.ModernBertConfig(
        **{**_WIDTH, "num_hidden_layers": 3},
        **_SPREAD,
        max_position_embeddings=64,
        local_attention=8,
        global_attn_every_n_layers=3,
        classifier_pooling="mean",
        pad_token_id=3,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    return config, _framed(byte_pairs(tokens), "[CLS]", "[SEP]")


#: Every architecture that the README promises.
FAMILIES: dict[str, Callable[[], tuple[PretrainedConfig, Tokenizer]]] = {
    "bert": _bert,
    "distilbert": _distilbert,
    "roberta": _roberta,
    "xlm-roberta": _xlm_roberta,
    "deberta-v2": _deberta_v2,
    "mpnet": _mpnet,
    "modernbert": _modernbert,
}


def _gpt2() -> tuple[PretrainedConfig, Tokenizer]:
    """A decoder: it answers from the last token of a text, which it finds by the id of its padding."""
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **_SPREAD)
    return config, byte_pairs(_ROBERTA_TOKENS)


def make(
    folder: Path, family: str, *, labels: Sequence[str] = ("no", "yes", "perhaps"), encoder: bool = False, **config: Any
) -> Path:
    """Write a folder as its authors would publish it: a classifier, or the bare `encoder`. `config`: fields to set."""
    settings, tokenizer = {**FAMILIES, "gpt2": _gpt2}[family]()
    settings.vocab_size = tokenizer.get_vocab_size()
    settings.id2label = dict(enumerate(labels))
    settings.label2id = {label: index for index, label in enumerate(labels)}
    for name, value in config.items():
        setattr(settings, name, value)
    torch.manual_seed(17)
    auto = transformers.AutoModel if encoder else transformers.AutoModelForSequenceClassification
    auto.from_config(settings).save_pretrained(folder)
    names = {settings.pad_token_id: "pad_token", tokenizer.token_to_id("[UNK]"): "unk_token"}
    special = {name: tokenizer.id_to_token(index) for index, name in names.items() if index is not None}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


def copy(source: Path, folder: Path) -> Path:
    return Path(shutil.copytree(source, folder, dirs_exist_ok=True))


def edit(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file, which need not exist yet; None removes one."""
    document = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    document |= fields
    removed = [name for name, value in fields.items() if value is None]
    path.write_text(json.dumps({name: value for name, value in document.items() if name not in removed}))


def rewrite_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Let `change` edit the tensors of a folder."""
    path = folder / "model.safetensors"
    loaded = safetensors.torch.load_file(path)
    change(loaded)
    safetensors.torch.save_file(loaded, path)
