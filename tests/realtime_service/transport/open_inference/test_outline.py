"""The outline of a ModelInferRequest, which its quota depends on, however its tensors are written."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protos.inference import open_inference_pb2 as pb
from realtime_service.routing.quotas import bytes_charged, texts_charged
from realtime_service.transport.open_inference import tensors
from realtime_service.transport.open_inference.requests import TEXT, TEXT_PAIR, outline
from realtime_service.transport.outlines import MOST_FIELDS, first_fields
from shared_model.types import MAX_TEXTS
from tests.realtime_service.transport.odd_messages import inside, odd_messages

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


@st.composite
def odd_requests(draw: st.DrawFn) -> bytes:
    """Tensors between fields that are odd."""
    odd, raw = odd_messages(pb.ModelInferRequest), draw(odd_messages(pb.ModelInferRequest))
    for name in draw(st.permutations([TEXT, TEXT_PAIR, "other"])):
        tensor = pb.ModelInferRequest.InferInputTensor(name=name)
        tensor.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=600), max_size=3)))
        raw += inside(5, tensor.SerializeToString()) + draw(odd)
        raw += draw(st.just(b"") | TEXTS.map(lambda texts: inside(7, tensors.pack(texts))))
    return raw


@given(odd_requests())
def test_the_outline_of_an_odd_message_is_that_of_what_a_parser_finds(raw: bytes) -> None:
    assume(len(first_fields(pb.ModelInferRequest, raw)) < MOST_FIELDS)
    found = pb.ModelInferRequest.FromString(raw)
    places, packed = {tensor.name: place for place, tensor in enumerate(found.inputs)}, found.raw_input_contents

    def sizes(name: str) -> list[int]:
        place = places.get(name)
        if place is None:
            return []
        typed = [len(it) for it in found.inputs[place].contents.bytes_contents]
        return typed or (tensors.sizes(packed[place]) if place < len(packed) else [])

    assert outline(raw) == (found.model_name, bytes_charged(sizes(TEXT), sizes(TEXT_PAIR)))


@given(st.binary(max_size=200))
def test_any_bytes_have_an_outline(raw: bytes) -> None:
    outline(raw)


def test_a_damaged_tensor_counts_as_far_as_it_is_whole() -> None:
    raw = asking({TEXT: ["a" * 300, "b" * 300]}, packed=True)
    assert outline(raw) == ("m", 4)
    # The length of its second text.
    assert outline(raw.replace(b"\x2c\x01\x00\x00b", b"\xff\xff\x00\x00b")) == ("m", 2)


def test_no_more_elements_are_read_than_a_request_may_have() -> None:
    assert outline(asking({TEXT: ["a"] * (MAX_TEXTS + 9)}, packed=True)) == ("m", MAX_TEXTS)


def test_only_the_elements_of_texts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read, sizes = list[int](), tensors.sizes
    monkeypatch.setattr(tensors, "sizes", lambda raw: read.append(len(raw)) or sizes(raw))
    raw = asking({TEXT: ["a"]}, packed=True) + inside(7, bytes(256)) * 100
    assert outline(raw) == ("m", 1)
    assert sum(read) < 256


def test_an_output_is_no_input() -> None:
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name=TEXT)
    assert outline(asking({TEXT: ["a" * 300]}, packed=True) + inside(6, output.SerializeToString())) == ("m", 2)
