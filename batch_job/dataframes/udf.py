"""A scorer as a function of SQL."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.functions import pandas_udf

from batch_job.dataframes.columns import SCORE_COLUMNS_DDL, Values


def scoring_udf(score_batches: Callable[[Iterator[Values]], Iterator[pa.RecordBatch]], pairs: bool) -> Any:
    """A function of one text, or of two. Spark reads its kind off the types of its arguments and its result."""

    def score(batches: Iterator[Values]) -> Iterator[pd.DataFrame]:
        for columns in score_batches(batches):
            yield columns.to_pandas(maps_as_pydicts="strict")

    def score_texts(texts: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        return score([text.tolist()] for text in texts)

    def score_pairs(texts: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.DataFrame]:
        return score([text.tolist(), pair.tolist()] for text, pair in texts)

    return pandas_udf(score_pairs if pairs else score_texts, f"struct<{SCORE_COLUMNS_DDL}>")
