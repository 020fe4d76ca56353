"""The outline of a ModelInferRequest, which its quota depends on, however its tensors are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.inference import open_inference_pb2 as pb
from realtime_service.routing.quotas import texts_charged
from realtime_service.transport.open_inference import tensors
from realtime_service.transport.open_inference.requests import TEXT, TEXT_PAIR, outline
from shared_model.types import MAX_TEXTS

TEXTS = st.lists(st.text(max_size=600), max_size=5)


def asking(inputs: dict[str, list[str]], packed: bool) -> bytes:
    """`packed`: as raw contents instead of typed ones."""
    request = pb.ModelInferRequest(model_name="m", id="1", outputs=[{"name": "label"}])
    request.parameters["priority"].int64_param = 1
    for name, texts in inputs.items():
        tensor = request.inputs.add(name=name, datatype="BYTES", shape=[len(texts)])
        if packed:
            request.raw_input_contents.append(tensors.pack(texts))
        else:
            tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    return request.SerializeToString()


@given(TEXTS, TEXTS, st.booleans(), st.booleans())
def test_the_outline_of_a_request_is_what_its_quota_depends_on(
    texts: list[str], pairs: list[str], packed: bool, pairs_first: bool
) -> None:
    inputs = {TEXT_PAIR: pairs, TEXT: texts} if pairs_first else {TEXT: texts, TEXT_PAIR: pairs}
    assert outline(asking(inputs, packed)) == ("m", texts_charged(texts, pairs))


@given(st.binary(max_size=200))
def test_any_bytes_have_an_outline(raw: bytes) -> None:
    assert outline(raw) is not None


def test_a_damaged_tensor_counts_as_far_as_it_is_whole() -> None:
    raw = asking({TEXT: ["a" * 300, "b" * 300]}, packed=True)
    assert outline(raw) == ("m", 4)
    # The length of its second text.
    assert outline(raw.replace(b"\x2c\x01\x00\x00b", b"\xff\xff\x00\x00b")) == ("m", 2)


@pytest.mark.parametrize(("extra", "known"), [(0, True), (200, False)])
def test_no_outline_is_made_of_more_fields_than_a_valid_request_has(extra: int, known: bool) -> None:
    raw = asking({TEXT: ["a"] * (MAX_TEXTS + extra), TEXT_PAIR: ["b"] * MAX_TEXTS}, packed=False)
    assert (outline(raw) is not None) is known


def test_no_more_elements_are_read_than_a_request_may_have() -> None:
    assert outline(asking({TEXT: ["a"] * (MAX_TEXTS + 9)}, packed=True)) == ("m", MAX_TEXTS)
