"""Decoding of tensors: any bytes become texts, or an error that names the tensor."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.inference import open_inference_pb2 as pb
from realtime_service.transport.open_inference import tensors
from realtime_service.transport.open_inference.requests import InferRequest, infer_request
from shared_model.errors import BadInput
from shared_model.types import Priority

lengths = st.integers(0, 12) | st.integers(0, 2**32 - 1)
#: Bytes that are partly valid elements.
nearly_elements = st.lists(
    st.binary(max_size=12).map(lambda data: struct.pack("<I", len(data)) + data)
    | st.binary(max_size=6)
    | lengths.map(lambda length: struct.pack("<I", length))
).map(b"".join)
shapes = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 4), max_size=4)


def message(raw: bytes | None, shape: list[int], typed: list[bytes] | None = None, **fields: object) -> bytes:
    request = pb.ModelInferRequest(model_name="m", **fields)
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=shape)
    if typed is not None:
        tensor.contents.bytes_contents.extend(typed)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request.SerializeToString()


def parsed(data: bytes) -> InferRequest | str:
    """The request, or the field of its error."""
    try:
        return infer_request(data)
    except BadInput as refused:
        return refused.field


@given(st.lists(st.text(min_size=1, max_size=20).map(lambda text: f"x{text}"), min_size=1, max_size=64), st.booleans())
def test_unpacking_is_the_inverse_of_packing(texts: list[str], column: bool) -> None:
    shape = [len(texts), 1] if column else [len(texts)]
    for data in (message(tensors.pack(texts), shape), message(None, shape, [text.encode() for text in texts])):
        request = infer_request(data)
        assert request.texts == tuple(texts)


@given(nearly_elements, shapes)
def test_any_raw_bytes_are_texts_or_name_their_tensor(raw: bytes, shape: list[int]) -> None:
    found = parsed(message(raw, shape))
    if isinstance(found, str):
        assert found.startswith("text")
    else:
        assert tensors.pack(found.texts) == raw
        assert len(found.texts) == shape[0]


@given(st.lists(st.binary(max_size=8), max_size=5), st.none() | shapes)
def test_any_typed_bytes_are_texts_or_name_their_tensor(typed: list[bytes], shape: list[int] | None) -> None:
    found = parsed(message(None, [len(typed)] if shape is None else shape, typed))
    if isinstance(found, str):
        assert found.startswith("text")
    else:
        assert [text.encode() for text in found.texts] == typed


@given(st.binary(max_size=300))
def test_any_message_at_all_is_a_request_or_refused(data: bytes) -> None:
    found = parsed(data)
    assert found if isinstance(found, str) else found.texts


@pytest.mark.parametrize(
    ("raw", "shape", "says"),
    [
        (b"\x01\x00", [1], "text: ends inside a length, at byte 0"),
        (b"\x02\x00\x00\x00a", [1], "text: ends inside an element: 2 bytes from byte 4 on, but there are 5"),
        (b"\xff\xff\xff\xffa", [1], "text: ends inside an element"),
        (tensors.pack(["a"]), [2], "text: holds fewer texts than the 2 of its shape"),
        (tensors.pack(["a", "b"]), [1], "text: holds more texts than the 1 of its shape"),
        (bytes(4 * 100_000), [64], "text: holds more texts"),
        (tensors.pack(["a"]), [], r"text: has shape \[\]"),
        (tensors.pack(["a"]), [1, 1, 1], r"text: has shape \[1,1,1\]"),
        (tensors.pack(["a", "b"]), [1, 2], r"text: has shape \[1,2\]"),
        (tensors.pack(["a"]), [-1], r"text: has shape \[-1\]"),
        (tensors.pack(["a", ""]), [2], r"text\[1\]: is empty"),
        (b"\x04\x00\x00\x00caf\xe9", [1], r"text\[0\]: is not valid UTF-8 at byte 3"),
    ],
)
def test_the_error_of_a_damaged_tensor_names_the_damage(raw: bytes, shape: list[int], says: str) -> None:
    with pytest.raises(BadInput, match=f"^{says}"):
        infer_request(message(raw, shape))


def test_raw_and_typed_contents_do_not_mix() -> None:
    with pytest.raises(BadInput, match=r"^text: has both raw and typed contents"):
        infer_request(message(tensors.pack(["a"]), [1], [b"a"]))
    two_for_one = pb.ModelInferRequest.FromString(message(tensors.pack(["a"]), [1]))
    two_for_one.raw_input_contents.append(b"")
    with pytest.raises(BadInput, match=r"^raw_input_contents: holds 2 tensors, must hold none or 1"):
        infer_request(two_for_one.SerializeToString())


def test_an_input_is_given_once() -> None:
    twice = pb.ModelInferRequest.FromString(message(None, [1], [b"a"]))
    twice.inputs.append(twice.inputs[0])
    with pytest.raises(BadInput, match=r"^text: is given twice"):
        infer_request(twice.SerializeToString())


def test_shared_memory_is_refused_and_not_ignored() -> None:
    request = pb.ModelInferRequest.FromString(message(None, [1], [b"a"]))
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"
    with pytest.raises(BadInput, match=r"^text: has the parameter shared_memory_region"):
        infer_request(request.SerializeToString())


@pytest.mark.parametrize("kind", ["int64_param", "uint64_param"])
@pytest.mark.parametrize(
    ("number", "priority"),
    [
        (0, Priority.UNSPECIFIED),
        (1, Priority.REAL_TIME),
        (2, Priority.NORMAL),
        (3, Priority.BATCH),
        (7, Priority.BATCH),
    ],
)
def test_priority_comes_as_either_integer(kind: str, number: int, priority: Priority) -> None:
    data = message(None, [1], [b"a"], parameters={"priority": pb.InferParameter(**{kind: number})})
    assert infer_request(data).priority is priority


@pytest.mark.parametrize(("microseconds", "timeout"), [(0, None), (40_000, 0.04), (2**63 - 1, (2**63 - 1) / 1e6)])
def test_timeout_is_in_microseconds_and_0_means_no_timeout(microseconds: int, timeout: float | None) -> None:
    data = message(None, [1], [b"a"], parameters={"timeout": pb.InferParameter(int64_param=microseconds)})
    assert infer_request(data).timeout == timeout


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize(
    "wrong",
    [
        pb.InferParameter(int64_param=-1),
        pb.InferParameter(string_param="1"),
        pb.InferParameter(double_param=1.0),
        pb.InferParameter(),
    ],
    ids=["negative", "string", "double", "nothing"],
)
def test_a_wrong_parameter_is_named(name: str, wrong: pb.InferParameter) -> None:
    assert parsed(message(None, [1], [b"a"], parameters={name: wrong})) == f"parameters['{name}']"


def test_numbers_are_packed_row_by_row_little_endian() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.frombuffer(tensors.pack_numbers(numbers.T), "<f4").tolist() == numbers.T.ravel().tolist()
