"""python -m tests.benchmarks.nightly.stock: what a team has without Tandem.

Spark's own `predict_batch_udf` around transformers in fp32: two workers of one torch thread, 64 rows a batch as they
come. On CPU, whatever else is there.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType

from batch_job.launch import spark_submit
from tests.benchmarks.nightly.night import session
from tests.load import child

MASTER, BATCH_ROWS = "local[2]", 64
MAX_TOKENS = 256

Predict = Callable[[NDArray[Any]], NDArray[np.int32]]


def make_predict() -> Predict:
    """In a Spark worker, once: the default encoder and head, texts → number of the best label."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from shared_model.building import build
    from shared_model.building.head import load_heads
    from shared_model.commands.make_release import HEADS

    torch.set_num_threads(1)
    folder, [head] = str(build.default_encoder()), load_heads(HEADS / "banking77")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    weight, bias = torch.from_numpy(head.weight), torch.from_numpy(head.bias)

    def predict(texts: NDArray[Any]) -> NDArray[np.int32]:
        inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            return np.asarray((mean @ weight.T + bias).argmax(-1).numpy(), dtype=np.int32)

    return predict


class Stock:
    """Answers the benchmark's questions. One UDF for all of them: another would load its model again."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._predict = predict_batch_udf(make_predict, return_type=IntegerType(), batch_size=BATCH_ROWS)

    def ask(self, texts: Sequence[str]) -> dict[str, float]:
        """rows/s, nothing written."""
        frame = self._spark.createDataFrame([(text,) for text in texts], "text string")
        frame = frame.repartition(self._spark.sparkContext.defaultParallelism).persist()
        frame.count()
        started = time.perf_counter()
        frame.select(self._predict("text").alias("label")).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started
        frame.unpersist()
        return {"rows_per_second": len(texts) / seconds}


def main() -> None:
    spark = session(MASTER, spark_submit.spark_conf())
    try:
        child.answer({}, Stock(spark).ask)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
