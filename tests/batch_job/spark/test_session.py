"""The Spark that a nightly run needs."""

import os
import sys

import pyspark
import pytest
from pyspark.sql import SparkSession

from batch_job.launch import spark_submit
from batch_job.run_record import Runtime
from batch_job.spark import session
from shared_model import devices
from shared_model.errors import JobError


def test_an_earlier_spark_than_the_tested_one_is_refused_in_one_line() -> None:
    session.check_version(pyspark.__version__)
    session.check_version("4.10.0.dev1")
    for version in ("3.5.9", "4.2.1"):
        with pytest.raises(
            JobError, match=f"^pyspark {version} scores data frames only; the nightly run needs 4.3: .*$"
        ):
            session.check_version(version)


def test_workers_of_an_unpacked_python_need_the_packages_of_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Runtime("/opt/elsewhere", "")
    with pytest.raises(JobError, match=r"the run was planned on /opt/elsewhere; set PYSPARK_PYTHON"):
        session.check_workers(spark, elsewhere)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", os.path.relpath(sys.executable))
    assert session.check_workers(spark, elsewhere) is devices.detect()
    here = spark_submit.packages()
    monkeypatch.setattr(spark_submit, "packages", lambda: here | {"a==1"})
    with pytest.raises(JobError, match=r"packages of a worker are not those of /opt/elsewhere: a==1; pack its archive"):
        session.check_workers(spark, elsewhere)
