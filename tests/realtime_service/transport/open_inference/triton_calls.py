"""Calls an unmodified tritonclient against a service, one of its models, and one version of that.

Runs in its own process, because the client has its own copy of the protocol's messages, and two would clash.
Arguments: ADDRESS MODEL VERSION. Prints one JSON object: a fact for each scenario.
"""

import asyncio
import base64
import json
import queue
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

TEXTS = ("my card has not arrived", "I want to close my account")


def text_tensor(texts: Iterable[str | bytes] = TEXTS, name: str = "text", columns: bool = False) -> triton.InferInput:
    values = np.array(list(texts), dtype=np.object_)
    if columns:
        values = values.reshape(-1, 1)
    tensor = triton.InferInput(name, list(values.shape), "BYTES")
    tensor.set_data_from_numpy(values)
    return tensor


def numbers_tensor(shape: tuple[int, ...]) -> triton.InferInput:
    tensor = triton.InferInput("text", list(shape), "FP32")
    tensor.set_data_from_numpy(np.zeros(shape, np.float32))
    return tensor


def outputs(*names: str) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in names]


def seen(result: triton.InferResult) -> dict[str, Any]:
    """An answer, read with the client's accessors."""
    response = result.get_response()
    arrays = {output.name: result.as_numpy(output.name) for output in response.outputs}
    parameters = {name: getattr(it, it.WhichOneof("parameter_choice")) for name, it in response.parameters.items()}
    return {
        "id": response.id,
        "model": [response.model_name, response.model_version],
        "outputs": list(arrays),
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
        "dtypes": {name: str(array.dtype) for name, array in arrays.items()},
        "scores": arrays["scores"].tolist() if "scores" in arrays else [],
        "labels": [label.decode() for label in arrays["label"].tolist()] if "label" in arrays else [],
        "parameters": parameters,
    }


class Calls:
    def __init__(self, address: str, model: str, version: str) -> None:
        self.client = triton.InferenceServerClient(address)
        self.address, self.model, self.version = address, model, version

    def infer(self, inputs: list[triton.InferInput] | None = None, **options: Any) -> dict[str, Any]:
        model = options.pop("model", self.model)
        return seen(self.client.infer(model, [text_tensor()] if inputs is None else inputs, **options))

    def failure(self, call: Callable[[], Any]) -> list[str]:
        try:
            call()
        except InferenceServerException as error:
            return [str(error.status()), error.message()]
        return ["OK", ""]

    def health(self) -> dict[str, bool]:
        return {
            "live": self.client.is_server_live(),
            "ready": self.client.is_server_ready(),
            "model": self.client.is_model_ready(self.model),
            "version": self.client.is_model_ready(self.model, self.version),
            "another model": self.client.is_model_ready("unknown"),
            "another version": self.client.is_model_ready(self.model, "1"),
        }

    def descriptions(self) -> dict[str, Any]:
        return {
            "server": MessageToDict(self.client.get_server_metadata()),
            "model": MessageToDict(self.client.get_model_metadata(self.model)),
            "config": MessageToDict(self.client.get_model_config(self.model, self.version))["config"],
            "index": MessageToDict(self.client.get_model_repository_index()),
            "unknown": self.failure(lambda: self.client.get_model_metadata("unknown")),
        }

    def answers(self) -> dict[str, Any]:
        named = {"request_id": "mine", "model_version": self.version}
        return {
            "flat": self.infer(**named),
            "column": self.infer([text_tensor(columns=True)]),
            "label only": self.infer(outputs=outputs("label")),
            "scores only": self.infer(outputs=outputs("scores")),
            "turned": self.infer(outputs=outputs("label", "scores")),
            "compressed": self.infer(compression_algorithm="gzip"),
            "of another's parameters": self.infer(
                parameters={"lane": "batch", "tries": 3, "share": 0.5, "eager": True}
            ),
            "aio": asyncio.run(self.answer_of_aio()),
        }

    async def answer_of_aio(self) -> dict[str, Any]:
        async with triton_aio.InferenceServerClient(self.address) as client:
            return seen(await client.infer(self.model, [text_tensor()]))

    def ways(self) -> dict[str, Any]:
        """A request of one text with these options."""
        one = [text_tensor(TEXTS[:1])]
        asked: dict[str, dict[str, Any]] = {
            "plain": {},
            "priority 1": {"priority": 1},
            "priority 2": {"priority": 2},
            "priority 3": {"priority": 3},
            "priority 9": {"priority": 9},
            "timeout 800 ms": {"timeout": 800_000},
            "timeout 5 s": {"timeout": 5_000_000},
            "timeout 20 s": {"timeout": 20_000_000},
            "deadline 50 s": {"client_timeout": 50.0},
            "timeout 20 s, deadline 10 s": {"timeout": 20_000_000, "client_timeout": 10.0},
        }
        return {name: self.infer(one, **options)["parameters"] for name, options in asked.items()}

    def failures(self) -> dict[str, list[str]]:
        long_name = "é" * 100_000
        asked: dict[str, dict[str, Any]] = {
            "unknown model": {"model": "unknown"},
            "unknown version": {"model_version": "1"},
            "unknown output": {"outputs": outputs("scores", "embedding")},
            "classification": {"outputs": [triton.InferRequestedOutput("label", class_count=3)]},
            "unknown input": {"inputs": [text_tensor(name="prompt")]},
            "a name without end": {"inputs": [text_tensor(name=long_name)]},
            "no input": {"inputs": []},
            "datatype": {"inputs": [numbers_tensor((2,))]},
            "shape": {"inputs": [text_tensor(["a", "b"]).set_shape([1, 2])]},
            "more texts than the shape": {"inputs": [text_tensor(["a", "b"]).set_shape([1])]},
            "too many": {"inputs": [text_tensor(["a"] * 65)]},
            "empty text": {"inputs": [text_tensor(["fine", " "])]},
            "not UTF-8": {"inputs": [text_tensor(["fine", b"caf\xe9"])]},
            "pair": {"inputs": [text_tensor(), text_tensor(name="text_pair")]},
            "no time": {"timeout": 1},
        }
        found = {name: self.failure(lambda options=options: self.infer(**options)) for name, options in asked.items()}
        found["shared memory"] = self.failure(self.client.get_system_shared_memory_status)
        return found

    def stream(self) -> dict[str, Any]:
        """Nine concurrent requests, the fifth of them invalid."""
        told: queue.Queue[Any] = queue.Queue()
        self.client.start_stream(lambda result, error: told.put((result, error)))
        for number in range(9):
            texts = [" "] if number == 4 else [TEXTS[number % 2]]
            self.client.async_stream_infer(
                self.model, [text_tensor(texts)], request_id=str(number), enable_empty_final_response=True
            )
        ends = [told.get(timeout=60) for _ in range(9)]
        self.client.stop_stream()
        return {
            "order": [result.get_response().id if result else None for result, _ in ends],
            "labels": [seen(result)["labels"] if error is None else None for result, error in ends],
            "errors": [error.message() if error else "" for _, error in ends],
            "final": [bool(result and result.get_response().parameters["triton_final_response"]) for result, _ in ends],
        }

    def statistics(self) -> dict[str, Any]:
        """The model's statistics, and once more after six texts in two requests and one refusal."""
        before = self.client.get_inference_statistics(self.model)
        self.infer()
        self.infer([text_tensor(["one", "two", "three", "four"])])
        self.failure(lambda: self.infer(timeout=1))
        after = self.client.get_inference_statistics(self.model)
        return {"before": MessageToDict(before), "after": MessageToDict(after)}

    def messages(self) -> list[str]:
        """The client's own description of the protocol."""
        files = (model_config_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR)
        return [base64.b64encode(file.serialized_pb).decode() for file in files]


SCENARIOS = ("health", "descriptions", "answers", "ways", "failures", "stream", "statistics", "messages")


def main(address: str, model: str, version: str) -> None:
    calls = Calls(address, model, version)
    json.dump({name: getattr(calls, name)() for name in SCENARIOS}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
