"""Traces by OpenTelemetry, on exactly where its standard variables name an OTLP endpoint; elsewhere none of its
packages is imported, and all that this module does is nothing.

    OTEL_EXPORTER_OTLP_ENDPOINT    the collector; or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, the whole URL
    OTEL_TRACES_SAMPLER, _ARG      which traces begin here; by default all, and a caller's decision is kept
    OTEL_SERVICE_NAME              and OTEL_RESOURCE_ATTRIBUTES: how the process is named
    TRACEPARENT                    the span that started this program, in the form of the header `traceparent`
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING

from shared_model.errors import SettingError

if TYPE_CHECKING:
    from shared_model.tracing.tracer import Span, Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP = "http/protobuf"
#: Names of the exporter that is used. Airflow takes the first for OTLP over gRPC, and a step inherits its variables.
_EXPORTERS = ("otlp", "otlp_proto_http")
#: The variables that a child process continues a trace by, and the headers of the same meaning.
_CARRIED = {"TRACEPARENT": "traceparent", "TRACESTATE": "tracestate"}

Attributes = Mapping[str, str | int | float | bool]


class Kind(Enum):
    """Of a span, as OpenTelemetry names them."""

    INTERNAL = auto()
    SERVER = auto()
    CLIENT = auto()
    CONSUMER = auto()


#: The attribute by which a failed span names its error.
ERROR_TYPE = "error.type"
#: The span of a deferred request that is answered, and its attributes.
PROCESS = "process deferred"
MESSAGING = MappingProxyType({"messaging.system": "redis", "messaging.operation.type": "process"})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """The sampled work that a task or thread does: `span`, of `tracer`."""

    tracer: "Tracer"
    span: "Span"

    @property
    def ids(self) -> dict[str, str]:
        """As logs and exemplars name them."""
        own = self.span.ids
        return {"trace_id": f"{own.trace_id:032x}", "span_id": f"{own.span_id:016x}"}


_WORK: ContextVar[Work | None] = ContextVar("_WORK", default=None)
#: The work of this task or thread; None where it is not sampled: one look is all that tracing costs then.
current = _WORK.get
#: Of a program: work of other traces, too, is recorded by it.
_TRACER: ContextVar["Tracer | None"] = ContextVar("_TRACER", default=None)
_NOTHING = contextlib.nullcontext()


def endpoint(environ: Mapping[str, str] = os.environ) -> str:
    """Where spans are sent; "" where tracing is off. Raises: SettingError for another protocol than OTLP over HTTP."""
    found = next(filter(None, map(environ.get, _ENDPOINTS)), "")
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not found or disabled or (environ.get("OTEL_TRACES_EXPORTER") or _EXPORTERS[0]) not in _EXPORTERS:
        return ""
    name = next(filter(environ.get, _PROTOCOLS), "")
    if name and environ[name] != _HTTP:
        raise SettingError(f"{name}={environ[name]!r}: expected {_HTTP}, which collectors take on port 4318")
    return found


def start(service: str, dropped: Callable[[int], object] = lambda count: None) -> "Tracer | None":
    """The tracer of this process; None where tracing is off. `service`: its name, unless OTEL_SERVICE_NAME is set.
    `dropped`: called with the number of spans that could not be exported, by another thread. Raises: SettingError."""
    if not (found := endpoint()):
        return None
    try:
        from shared_model.tracing.tracer import Tracer
    except ModuleNotFoundError as missing:
        log.warning("%s is set, and %s is not installed: nothing is traced", found, missing.name)
        return None
    return Tracer(service, dropped)


@contextlib.contextmanager
def program(name: str, service: str) -> Iterator[Callable[[int], None]]:
    """Trace a program until this context ends, as a part of the span that TRACEPARENT names; child processes continue
    it. Yields a function to be called with its exit code. Raises: SettingError."""
    tracer = start(service)
    if tracer is None:
        yield lambda code: None
        return
    carrier = {header: os.environ[name] for name, header in _CARRIED.items() if name in os.environ}
    sampled = tracer.sampled(name, carrier)
    span = tracer.begin(sampled) if sampled else None

    def ended(code: int) -> None:
        if span:
            span.set_attributes({"process.exit.code": code})

    before = {name: os.environ.get(name) for name in _CARRIED}
    carried = tracer.carried(span, carrier)
    _tell({name: carried.get(header) for name, header in _CARRIED.items()})
    token = _TRACER.set(tracer)
    try:
        with working(Work(tracer, span)) if span else _NOTHING:
            yield ended
    except SystemExit as end:
        ended(end.code if isinstance(end.code, int) else 1)
        raise
    finally:
        _TRACER.reset(token)
        _tell(before)
        if span:
            span.end()
        tracer.close()


def leave() -> None:
    """End and export the current work, before another program takes the place of this process and continues it."""
    if work := _WORK.get():
        work.span.end()
        work.tracer.close()


@contextlib.contextmanager
def working(work: Work) -> Iterator[None]:
    """Until this context ends, `work` is the current one."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        _WORK.reset(token)


def stage(name: str, **attributes: str | int | float | bool) -> contextlib.AbstractContextManager[None]:
    """A part of the current work, as a span; nothing where it is not sampled. Attributes are named `tandem.…`."""
    work = _WORK.get()
    return _NOTHING if work is None else _part(work, name, _own(attributes), Kind.INTERNAL)


def redis_call(operation: str, script: str = "") -> contextlib.AbstractContextManager[None]:
    """As `stage`, for a round trip to Redis. `script`: that it runs."""
    work = _WORK.get()
    if work is None:
        return _NOTHING
    attributes = {"db.system.name": "redis", "db.operation.name": operation}
    if script:
        attributes["db.stored_procedure.name"] = script
    return _part(work, f"{operation} {script}".rstrip(), attributes, Kind.CLIENT)


def traceparent() -> str:
    """The header by which later work continues the current one; "" where that is not sampled."""
    work = _WORK.get()
    return work.tracer.carried(work.span, {})["traceparent"] if work else ""


def past(name: str, began: float, ended: float, **attributes: str | int | float | bool) -> None:
    """As `stage`, for a part that another process has done. Times are seconds since 1970."""
    if work := _WORK.get():
        span = work.tracer.child(work.span, name, start=round(began * 1e9), attributes=_own(attributes))
        span.end(round(ended * 1e9))


def submitted(traceparent: str, began: float, failure: str = "") -> None:
    """Record that this program processed a request of an earlier trace from `began`, in seconds since 1970, until now:
    a part of that trace, with a link to the current work. `traceparent`: as it was stored; `failure`: why there is no
    answer. Nothing where that trace is not sampled."""
    if (tracer := _TRACER.get()) is None or not traceparent:
        return
    links = [work.span] if (work := _WORK.get()) else []
    carrier, start = {"traceparent": traceparent}, round(began * 1e9)
    if sampled := tracer.sampled(PROCESS, carrier, Kind.CONSUMER):
        span = tracer.begin(sampled, start, MESSAGING, links)
        if failure:
            span.fail(failure)
        span.end()


@contextlib.contextmanager
def _part(work: Work, name: str, attributes: Attributes, kind: Kind) -> Iterator[None]:
    span = work.tracer.child(work.span, name, kind, attributes=attributes)
    try:
        with working(Work(work.tracer, span)):
            yield
    except BaseException as error:
        span.fail(error)
        raise
    finally:
        span.end()


def _own(attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {f"tandem.{name}": value for name, value in attributes.items()}


def _tell(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
