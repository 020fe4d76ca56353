"""The Spark that a nightly run needs."""

import pyspark
import pytest

from batch_job.spark import session
from shared_model.errors import JobError


def test_an_earlier_spark_than_the_tested_one_is_refused_in_one_line() -> None:
    session.check_version(pyspark.__version__)
    session.check_version("4.10.0.dev1")
    for version in ("3.5.9", "4.2.1"):
        with pytest.raises(
            JobError, match=f"^pyspark {version} scores data frames only; the nightly run needs 4.3: .*$"
        ):
            session.check_version(version)
