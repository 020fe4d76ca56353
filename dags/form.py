"""The trigger form of the nightly run: Airflow refuses values that are of another type. A field that may stay empty has
the type null, too: a browser cannot send the form without the others."""

from airflow.sdk import Param

from batch_job.launch import operating, spark_submit

#: Runs that the schedule starts have a partition key and do not look at the day.
FORM = {
    "day": Param(spark_submit.yesterday(), type="string", format="date", description="The day to score, YYYY-MM-DD."),
    "model": Param(
        None,
        type=["null", "string"],
        pattern=operating.MODEL_OR_NONE,
        description="The model to score with, by its name; empty: TANDEM_NIGHTLY_MODEL, else the default one, and "
        "those of TANDEM_NIGHTLY_MODELS.",
    ),
    "force": Param(False, type="boolean", description="Score again what is committed already."),
    "int8": Param(False, type="boolean", description="Score in INT8 on CPU: faster, and less exact."),
    "accept": Param(
        [],
        type=["null", "array"],
        items={"type": "string", "enum": list(spark_submit.ACCEPTABLE)},
        # The form then offers these instead of a field for text.
        examples=list(spark_submit.ACCEPTABLE),
        description="Gates that may fail without asking a person: labels, agreement, agreement-drop.",
    ),
}
