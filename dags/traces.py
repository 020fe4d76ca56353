"""Steps continue the trace of their Airflow task, which has a span where Airflow's own tracing is on."""

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from batch_job.launch import spark_submit


def carried() -> dict[str, str]:
    """The task's span as variables, which a step reads; none where it has no span."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def step_environment() -> dict[str, str]:
    return {**spark_submit.step_environment(), **carried()}
