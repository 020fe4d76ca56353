"""Parses and checks a ModelInferRequest. Every error names the tensor or the parameter."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from protos.inference import open_inference_pb2 as pb
from realtime_service.routing.quotas import bytes_charged
from realtime_service.serving.request import ScoringRequest, check_name
from realtime_service.transport.messages import parse
from realtime_service.transport.open_inference import tensors
from realtime_service.transport.outlines import Outline, first_fields, text
from shared_model.errors import BadInput
from shared_model.types import Priority

TEXT, TEXT_PAIR = "text", "text_pair"
SCORES, LABEL, ABSTAINED = "scores", "label", "abstained"

#: Inputs, outputs and parameters of each that a message may have; it needs two.
_MOST = 16

#: By the parameter `priority`; larger numbers are BATCH.
_PRIORITIES = (Priority.UNSPECIFIED, Priority.REAL_TIME, Priority.NORMAL)
#: Unsupported parameters that would change the answer or the place of its bytes; a request with one is refused.
_NOT_SERVED = ("classification", "shared_memory_region")

_Parameters = Mapping[str, pb.InferParameter]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """`version`: a release id, or "". `timeout` in seconds. `outputs`: requested names; empty means all."""

    model: str
    version: str
    id: str
    texts: tuple[str, ...]
    text_pairs: tuple[str, ...]
    priority: Priority
    timeout: float | None
    outputs: tuple[str, ...]

    def scoring(self, release: str, model: str, every_score: bool) -> ScoringRequest:
        """The same request of one release, for the dispatcher. `model`: "" for the default one."""
        return ScoringRequest(
            texts=self.texts,
            text_pairs=self.text_pairs,
            priority=self.priority,
            timeout=self.timeout,
            top_k=1,
            release=release,
            request_id=self.id,
            every_score=every_score,
            model=model,
        )


def outline(raw: bytes) -> Outline:
    model = ""
    # By tensor, like "inputs[0]": its name, the sizes of its elements, its raw contents.
    names, typed, packed = dict[str, str](), dict[str, list[int]](), dict[str, bytes | memoryview]()
    for name, known, content in first_fields(pb.ModelInferRequest, raw):
        if known is None or content is None:
            continue
        tensor = name.partition(".")[0]
        if name == "model_name":
            model = text(content)
        elif name == f"{tensor}.name" and tensor.startswith("inputs["):
            names[tensor] = text(content)
        elif known.name == "bytes_contents":
            typed.setdefault(tensor, []).append(len(content))
        elif known.name == "raw_input_contents":
            packed[tensor.replace(known.name, "inputs")] = content
    named = {name: tensor for tensor, name in names.items()}

    def sizes(name: str) -> list[int]:
        tensor = named.get(name, "")
        return typed.get(tensor) or tensors.sizes(packed.get(tensor, b""))

    return Outline(model, bytes_charged(sizes(TEXT), sizes(TEXT_PAIR)))


def infer_request(raw: bytes) -> InferRequest:
    """Raises: BadInput, MessageTooLarge."""
    message = parse(pb.ModelInferRequest, raw)
    for field in ("inputs", "outputs", "parameters"):
        if (held := len(getattr(message, field))) > _MOST:
            raise BadInput(field, f"holds {held}, must hold at most {_MOST}")
    for field, name in (
        ("id", message.id),
        ("model_name", message.model_name),
        ("model_version", message.model_version),
    ):
        check_name(field, name)
    inputs = dict(_inputs(message))
    if TEXT not in inputs:
        raise BadInput(TEXT, "is missing among the inputs")
    pairs = inputs.get(TEXT_PAIR, ())
    if pairs and len(pairs) != len(inputs[TEXT]):
        raise BadInput(TEXT_PAIR, f"holds {len(pairs)} texts, must hold {len(inputs[TEXT])}, as many as {TEXT}")
    for output in message.outputs:
        _refuse_not_served(output.name, output.parameters)
    priority = _whole(message.parameters, "priority")
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        texts=inputs[TEXT],
        text_pairs=pairs,
        priority=_PRIORITIES[priority] if priority < len(_PRIORITIES) else Priority.BATCH,
        timeout=_whole(message.parameters, "timeout") / 1e6 or None,
        outputs=tuple(output.name for output in message.outputs),
    )


def _inputs(message: pb.ModelInferRequest) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name and the texts of each input."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise BadInput("raw_input_contents", f"holds {len(raw)} tensors, must hold none or {len(message.inputs)}")
    seen = set[str]()
    for index, tensor in enumerate(message.inputs):
        if tensor.name not in (TEXT, TEXT_PAIR):
            raise BadInput(tensor.name, f"is not an input; there are {TEXT} and, for pairs, {TEXT_PAIR}")
        if tensor.name in seen:
            raise BadInput(tensor.name, "is given twice")
        seen.add(tensor.name)
        yield tensor.name, _texts(tensor, raw[index] if raw else None)


def _texts(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> tuple[str, ...]:
    name = tensor.name
    if tensor.datatype != "BYTES":
        raise BadInput(name, f"has datatype {tensor.datatype!r}, must have BYTES")
    _refuse_not_served(name, tensor.parameters)
    typed = tensor.contents.bytes_contents
    if raw is not None and typed:
        raise BadInput(name, "has both raw and typed contents")
    elements = typed if raw is None else tensors.unpack(name, raw)
    return tensors.texts(name, elements, tensors.rows(name, tensor.shape))


def _refuse_not_served(name: str, parameters: _Parameters) -> None:
    for parameter in _NOT_SERVED:
        if parameter in parameters:
            raise BadInput(name, f"has the parameter {parameter}, which is not served")


def _whole(parameters: _Parameters, name: str) -> int:
    """An integer parameter, 0 by default. Clients send signed and unsigned ones."""
    if name not in parameters:
        return 0
    parameter = parameters[name]
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise BadInput(f"parameters[{name!r}]", "must be a whole number")
    value: int = getattr(parameter, kind)
    if value < 0:
        raise BadInput(f"parameters[{name!r}]", f"is {value}, must not be negative")
    return value
