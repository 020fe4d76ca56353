"""The OpenAPI document of the interface, from its routes and the messages' descriptors, and a page that shows it."""

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from starlette.requests import Request
from starlette.responses import Response

from protos.inference import open_inference_pb2 as inference
from realtime_service.http.call_context import TIMEOUT
from realtime_service.http.routes import ROUTES, Route
from realtime_service.transport.authentication import CALLER_ID
from realtime_service.transport.call_context import LANE

_TEMPLATE = Path(__file__).parent / "page.html"
#: Nothing but the page's own styles: it needs no script and no other file.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
}
_ERRORS = {
    "400": "The request is wrong; the text names the field.",
    "401": "The token is missing, not valid or expired.",
    "403": "The token does not permit this.",
    "404": "The model, the path or the submitted request is not here.",
    "409": "The id is that of another request.",
    "413": "The body is larger than any valid one.",
    "429": "Refused: too late, too much under way, or over the quota. Retry-After says when to try again.",
    "503": "This replica cannot answer now.",
    "504": "The deadline passed.",
}
_HEADERS = (
    ("authorization", "Bearer TOKEN, where tokens are required or name the caller."),
    (CALLER_ID, "The name that a caller without a token claims."),
    (LANE, "The lane that is to answer: latency, dynamic or throughput."),
    (TIMEOUT, "Milliseconds until the call's deadline."),
)
#: Messages whose JSON is not that of their descriptor: data is in the tensors, and parameters are plain values.
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype", "data"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string"},
        "parameters": {"type": "object"},
        "data": {"type": "array", "items": {}},
    },
}
_TENSORS = {"type": "array", "items": _TENSOR}
_OWN_FORMS: dict[str, dict[str, Any]] = {
    inference.ModelInferRequest.DESCRIPTOR.full_name: {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": _TENSORS,
            "outputs": {"type": "array", "items": {"type": "object"}},
        },
    },
    inference.ModelInferResponse.DESCRIPTOR.full_name: {
        "type": "object",
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": _TENSORS,
        },
    },
}


async def document(request: Request) -> Response:
    return Response(orjson.dumps(openapi()), media_type="application/json")


async def page(request: Request) -> Response:
    return Response(_page(), media_type="text/html", headers={"content-security-policy": _POLICY})


@functools.cache
def openapi() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path.replace(":path}", "}"), {})[route.verb.lower()] = _operation(route)
    for path, summary in (
        ("/v2/health/live", "Whether the process runs; needs no token."),
        (
            "/v2/health/ready",
            "Whether this replica takes calls (?lane=NAME: of a lane, or of several): 200, else 503; needs no token.",
        ),
    ):
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "Yes."}}}}
    error = {"error": {"type": "string"}, "code": {"type": "string"}, "retry_after_ms": {"type": "integer"}}
    schemas = {it.full_name: _schema(it) for it in _descriptors()}
    schemas["Error"] = {"type": "object", "properties": error}
    about = "The methods of scoring.v1 and of the Open Inference Protocol as JSON, with the same rules."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tandem", "version": "1", "description": about},
        "paths": paths,
        "components": {"schemas": schemas},
    }


@functools.cache
def _page() -> str:
    environment = jinja2.Environment(autoescape=True)
    return environment.from_string(_TEMPLATE.read_text()).render(document=openapi())


def _operation(route: Route) -> dict[str, Any]:
    kind = "text/event-stream" if route.streams else "application/json"
    good = {"description": "The answer.", "content": {kind: {"schema": _reference(route.answer.DESCRIPTOR)}}}
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {code: {"description": text, "content": failed} for code, text in _ERRORS.items()}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": list(_parameters(route)),
        "responses": {"200": good, **errors},
    }
    if route.body:
        content = {"application/json": {"schema": _reference(route.body.DESCRIPTOR)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    text = {"type": "string"}
    for name in re.findall(r"\{(\w+)", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": text}
    for name in route.parameters:
        several = {"type": "array", "items": text} if route.streams or name == "id" else text
        yield {"name": name, "in": "query", "schema": several}
    for name, meaning in _HEADERS:
        yield {"name": name, "in": "header", "schema": text, "description": meaning}


def _descriptors() -> list[Descriptor]:
    """Those of all messages that routes take and give, and of the messages in them."""
    found: dict[str, Descriptor] = {}

    def visit(these: Iterable[Any]) -> None:
        for it in these:
            if it and it.full_name not in found and not it.GetOptions().map_entry:
                found[it.full_name] = it
            if it and it.full_name not in _OWN_FORMS:
                visit(field.message_type for field in it.fields)

    visit(kind.DESCRIPTOR for route in ROUTES for kind in (route.body, route.answer) if kind)
    return list(found.values())


def _schema(descriptor: Descriptor) -> dict[str, Any]:
    return _OWN_FORMS.get(descriptor.full_name) or {
        "type": "object",
        "properties": {field.name: _field(field) for field in descriptor.fields},
    }


def _field(field: FieldDescriptor) -> dict[str, Any]:
    if field.message_type and field.message_type.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _field(field.message_type.fields_by_name["value"])}
    if field.message_type:
        one = _reference(field.message_type)
    elif field.enum_type:
        one = {"type": "string", "enum": [it.name for it in field.enum_type.values]}
    else:
        one = _SCALARS.get(field.cpp_type, {"type": "integer"})
    return {"type": "array", "items": one} if field.is_repeated else one


def _reference(descriptor: Any) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{descriptor.full_name}"}
