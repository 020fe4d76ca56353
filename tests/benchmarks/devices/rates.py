"""Rates of one model on one device: by Tandem's nightly code, and by two libraries that others would use."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from batch_job.scoring import windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from shared_model.encoding import TokenBatch, collate
from shared_model.types import Device
from tests.benchmarks.devices.models import Subject
from tests.benchmarks.nightly import flops

BATCH_ROWS = 64
#: Sides of the matrices by whose product a device's rate is measured, and how many products.
_SIDE, _CPU_SIDE, _PRODUCTS = 8192, 256, 20


def matmul(device: Device) -> float:
    """FLOP/s of FP16 matrix products."""
    side = _SIDE if device is Device.CUDA else _CPU_SIDE
    left, right = (torch.randn(side, side, device=device, dtype=torch.float16) for _ in range(2))
    left @ right
    _wait(device)
    started = time.perf_counter()
    for _ in range(_PRODUCTS):
        left @ right
    _wait(device)
    return 2 * side**3 * _PRODUCTS / (time.perf_counter() - started)


def nightly(subject: Subject, texts: Sequence[str]) -> dict[str, float]:
    """From texts to scores, as in one Spark task; `flops`: of the encoder's layers, per second."""
    model = Model("bench", subject.heads, subject.encoder, subject.engine, str(subject.engine.device))
    options = ScoringOptions("", "bench", subject.engine.device, deduplicate=False)
    rows = NightlySettings().shard_rows(Device.CUDA)
    shards = (pa.record_batch({"text": list(texts[start : start + rows])}) for start in range(0, len(texts), rows))
    started, tokens, busy, work = time.perf_counter(), 0, 0.0, 0.0
    for window in windows.score_windows(shards, lambda it: it.column("text").to_pylist(), model, options):
        tokens, busy = tokens + window.tokens, busy + window.device_busy
        work += flops.of_texts(subject.config, [encoding.tokens for encoding in window.encodings])
    seconds = time.perf_counter() - started
    return {
        "rows_per_second": len(texts) / seconds,
        "tokens_per_second": tokens / seconds,
        "device_busy": busy / seconds,
        "flops": work / seconds,
    }


def transformers(subject: Subject, texts: Sequence[str]) -> float:
    """rows/s of transformers with SDPA, in half precision, in batches of similar length."""
    device = subject.engine.device
    tokenizer = AutoTokenizer.from_pretrained(subject.folder)
    load = AutoModelForSequenceClassification.from_pretrained
    model = load(subject.folder, dtype=torch.float16, attn_implementation="sdpa").eval().to(device)
    ordered = sorted(texts, key=len, reverse=True)
    started = time.perf_counter()
    with torch.inference_mode():
        for start in range(0, len(ordered), BATCH_ROWS):
            inputs = tokenizer(ordered[start : start + BATCH_ROWS], padding=True, truncation=True, return_tensors="pt")
            model(**inputs.to(device)).logits.cpu()
    return len(texts) / (time.perf_counter() - started)


def sentence_transformers(subject: Subject, texts: Sequence[str]) -> float:
    """rows/s of `encode` in half precision."""
    # Not sooner: it takes a second, in each of the suite's workers.
    from sentence_transformers import SentenceTransformer

    options = {"dtype": "float16"}
    model = SentenceTransformer(str(subject.folder), device=subject.engine.device.value, model_kwargs=options)
    started = time.perf_counter()
    model.encode(list(texts), batch_size=BATCH_ROWS, show_progress_bar=False)
    return len(texts) / (time.perf_counter() - started)


def beside_bulk(subject: Subject, text: str, bulk: Sequence[str], calls: int) -> dict[str, float]:
    """Milliseconds of single texts while bulk work is scored over and over, on the stream that yields where there is
    one."""
    beside = subject.engine.beside()
    yielding = replace(subject, engine=beside or subject.engine)
    batch, stop = collate(subject.encoder.encode_many([text])), threading.Event()

    def score_bulk() -> None:
        while not stop.is_set():
            nightly(yielding, bulk)

    thread = threading.Thread(target=score_bulk)
    thread.start()
    try:
        seconds = [_seconds(subject, batch) for _ in range(calls)]
    finally:
        stop.set()
        thread.join()
        if beside:
            beside.close()
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e3
    return {"p50_ms": float(p50), "p99_ms": float(p99)}


def _seconds(subject: Subject, batch: TokenBatch) -> float:
    started = time.perf_counter()
    subject.engine.score(batch)
    return time.perf_counter() - started


def _wait(device: Device) -> None:
    if device is Device.CUDA:
        torch.cuda.synchronize()
