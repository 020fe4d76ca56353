"""The JSON of the Open Inference Protocol's REST interface, version 2, as its gRPC messages and back."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from protos.inference import open_inference_pb2 as pb
from realtime_service.http import json_messages
from realtime_service.transport.open_inference import tensors
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXTS

#: Those of gRPC's that this interface has, too.
EXTENSIONS = ("schedule_policy", "parameters")
_TENSOR = ("name", "shape", "datatype", "parameters", "data")


def request(model: str, version: str, body: dict[str, Any]) -> pb.ModelInferRequest:
    """Names and numbers of texts are left to the method. Raises: BadInput."""
    _check_names(body, ("id", "parameters", "inputs", "outputs"), "")
    made = pb.ModelInferRequest(model_name=model, model_version=version, id=_string(body, "id", ""))
    _set_parameters(made.parameters, body, "")
    for path, tensor in _listed(body, "inputs"):
        _check_names(tensor, _TENSOR, path)
        added = made.inputs.add(name=_string(tensor, "name", path), datatype=_string(tensor, "datatype", path))
        added.shape.extend(_shape(tensor, path))
        _set_parameters(added.parameters, tensor, path)
        added.contents.bytes_contents.extend(_texts(tensor.get("data"), f"{path}data"))
    for path, output in _listed(body, "outputs"):
        _check_names(output, ("name", "parameters"), path)
        _set_parameters(made.outputs.add(name=_string(output, "name", path)).parameters, output, path)
    return made


def response(answer: pb.ModelInferResponse) -> dict[str, Any]:
    return {
        "model_name": answer.model_name,
        "model_version": answer.model_version,
        "id": answer.id,
        "parameters": {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in answer.parameters.items()
        },
        "outputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "data": _data(tensor.datatype, tensor.name, raw),
            }
            for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        ],
    }


def server_metadata(answer: pb.ServerMetadataResponse) -> dict[str, Any]:
    return {**json_messages.shown(answer), "extensions": list(EXTENSIONS)}


def _data(datatype: str, name: str, raw: bytes) -> Any:
    """A tensor's elements in one list, from the raw form that the method answers in."""
    if datatype == "BYTES":
        return [element.decode() for element in tensors.unpack(name, raw)]
    return np.frombuffer(raw, "<f4" if datatype == "FP32" else "?")


def _check_names(found: dict[str, Any], known: tuple[str, ...], path: str) -> None:
    if unknown := sorted(found.keys() - set(known)):
        raise BadInput(f"{path}{unknown[0]}"[:64], f"is unknown; there are {', '.join(known)}")


def _listed(body: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with the path of its fields."""
    found = body.get(name) or []
    if not isinstance(found, list) or not all(isinstance(it, dict) for it in found):
        raise BadInput(name, "must be a list of objects")
    return ((f"{name}[{index}].", it) for index, it in enumerate(found))


def _string(found: dict[str, Any], name: str, path: str) -> str:
    value = found.get(name, "")
    if not isinstance(value, str):
        raise BadInput(f"{path}{name}", "must be a string")
    return value


def _shape(tensor: dict[str, Any], path: str) -> list[int]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(it) is int and abs(it) < 2**63 for it in shape):
        raise BadInput(f"{path}shape", "must be a list of whole numbers")
    return shape


def _texts(data: Any, path: str) -> Iterator[bytes]:
    """The texts of a list, or of a list of lists, row by row. One more than can be scored shows that there are too
    many."""
    if not isinstance(data, list):
        raise BadInput(path, "must be a list of strings")
    flat = itertools.chain.from_iterable(it if isinstance(it, list) else (it,) for it in data)
    for text in itertools.islice(flat, MAX_TEXTS + 1):
        if not isinstance(text, str):
            raise BadInput(path, "must be a list of strings")
        yield text.encode()


def _set_parameters(made: Any, found: dict[str, Any], path: str) -> None:
    parameters = found.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BadInput(f"{path}parameters", "must be an object")
    choices = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for name, value in parameters.items():
        choice = choices.get(type(value))
        try:
            if choice is None:
                raise ValueError
            setattr(made[name], choice, value)
        except ValueError:
            raise BadInput(f"{path}parameters[{name[:64]!r}]", "must be a string, a number, true or false") from None
