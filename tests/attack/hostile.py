"""Hostile messages: bytes that valid clients never send."""

import random
from collections.abc import Callable, Iterator, Mapping

from google.protobuf.message import Message

from protos.inference import open_inference_pb2 as open_inference
from protos.scoring.v1 import scoring_pb2 as scoring
from realtime_service.transport.messages import MAX_MESSAGE_BYTES
from shared_model.types import MAX_TEXT_BYTES, MAX_TEXTS

SCORE = "/scoring.v1.ScoringService/Score"
SUBMIT = "/scoring.v1.ScoringService/Submit"
#: One field of one byte, as a text of ScoreRequest or an id of WatchResultsRequest.
_TINY = b"\x0a\x01a"
#: A text that is not UTF-8.
_BAD = b"\x0a\x01\xff"
#: As many tiny fields as one message may hold.
_FIELDS = 1_400_000
#: Sizes near which a length changes its own size, or a limit lies.
_EDGES = (0, 1, 127, 128, 16_383, 16_384, 65_535, 65_536, 65_537)
_DEPTH = 120
#: The number of a field that ScoreRequest does not have, and bytes before its content.
_UNKNOWN, _HEAD = 14, 4

Unary = tuple[str, bytes]


def malformed() -> tuple[Unary, ...]:
    """Messages of 4 MB that cost their sender 4 KB, and whose invalid field is their last."""
    flat = _TINY * _FIELDS + _BAD
    return ((SCORE, flat), (SUBMIT, _field(1, flat)), (SCORE, bytes(len(flat))), (SCORE, _TINY * _FIELDS))


def long_texts() -> Unary:
    """A valid request of the longest texts, which cannot be answered in its time."""
    texts = [words(MAX_TEXT_BYTES)] * MAX_TEXTS
    return SCORE, scoring.ScoreRequest(texts=texts, timeout_ms=50).SerializeToString()


def long_requests() -> tuple[bytes, bytes, bytes]:
    """0.4 MB each, of `ScoreStream`, `SubmitStream` and `ModelStreamInfer`, of a model that is not there."""
    request = scoring.ScoreRequest(texts=[words(MAX_TEXT_BYTES)] * 6, request_id="a-1")
    inferred = open_inference.ModelInferRequest(model_name="any", id="a-1")
    tensor = inferred.inputs.add(name="text", datatype="BYTES", shape=[6])
    tensor.contents.bytes_contents.extend(it.encode() for it in request.texts)
    submitted = scoring.SubmitRequest(request=request)
    return request.SerializeToString(), submitted.SerializeToString(), inferred.SerializeToString()


def padded(size: int) -> bytes:
    """A valid request of about so many bytes. Its one text is short, because long ones would fill the device; the other
    bytes are a field of a later version."""
    raw = scoring.ScoreRequest(texts=["where is my card"], timeout_ms=99).SerializeToString()
    return raw + _field(_UNKNOWN, bytes(max(0, min(size, MAX_MESSAGE_BYTES) - len(raw) - _HEAD)))


def words(size: int) -> str:
    """A text of so many bytes."""
    phrase = "all my cards are gone "
    return (phrase * (size // len(phrase) + 1))[:size]


_VALID: Mapping[str, Message] = {
    SCORE: scoring.ScoreRequest(texts=["where is my card", "and my money"], timeout_ms=99, top_k=2, request_id="a-1"),
    SUBMIT: scoring.SubmitRequest(request=scoring.ScoreRequest(texts=["later"], request_id="a-2")),
    "/scoring.v1.ScoringService/GetResult": scoring.GetResultRequest(request_id="a-1"),
    "/scoring.v1.ScoringService/Describe": scoring.DescribeRequest(),
    "/inference.GRPCInferenceService/ModelInfer": open_inference.ModelInferRequest(
        model_name="any",
        inputs=[
            open_inference.ModelInferRequest.InferInputTensor(
                name="text",
                datatype="BYTES",
                shape=[1],
                contents=open_inference.InferTensorContents(bytes_contents=[b"where is my card"]),
            )
        ],
    ),
    "/inference.GRPCInferenceService/ModelReady": open_inference.ModelReadyRequest(name="any"),
    "/inference.GRPCInferenceService/ModelMetadata": open_inference.ModelMetadataRequest(name="any"),
    "/inference.GRPCInferenceService/ModelStatistics": open_inference.ModelStatisticsRequest(name="any"),
    "/inference.GRPCInferenceService/RepositoryIndex": open_inference.RepositoryIndexRequest(),
    "/grpc.health.v1.Health/Check": scoring.GetResultRequest(request_id="scoring.v1.ScoringService"),
}


def uniform(draw: random.Random) -> Unary:
    """A valid message in which some bytes are changed, cut out or doubled, whichever they are."""
    method = draw.choice(list(_VALID))
    raw = bytearray(_VALID[method].SerializeToString())
    for _ in range(draw.randint(1, 8)):
        at = draw.randint(0, len(raw))
        action = draw.randrange(3)
        if action == 0:
            raw[at:at] = draw.randbytes(draw.randint(1, 16))
        elif action == 1:
            del raw[at : at + draw.randint(1, 8)]
        elif raw:
            raw[at % len(raw)] = draw.randrange(256)
    return method, bytes(raw)


def structured(draw: random.Random) -> Unary:
    """A message that is built to cost: many fields, long repeats, sizes at edges, deep nesting."""
    return draw.choice(list(_VALID)), draw.choice(_SHAPES)(draw)


def _many_fields(draw: random.Random) -> bytes:
    number, payload = draw.randint(1, 9), draw.randbytes(draw.randint(0, 2))
    return _field(number, payload) * draw.choice((64, 65, 66, 1_000, 50_000)) + draw.choice((b"", _BAD, b"\xff"))


def _long_repeats(draw: random.Random) -> bytes:
    return _field(draw.randint(1, 7), draw.choice((b"a", b" ", b"\xff", "é".encode())) * draw.choice(_EDGES))


def _edges(draw: random.Random) -> bytes:
    claimed, held = draw.choice(_EDGES), draw.choice(_EDGES)
    return bytes((draw.randint(1, 8) << 3 | 2,)) + _varint(claimed) + b"a" * held


def _nested(draw: random.Random) -> bytes:
    raw, number = draw.choice((b"", _TINY, _BAD)), draw.choice((1, 2, 5, 7))
    for _ in range(draw.choice((2, 50, 99, 100, 101, _DEPTH))):
        raw = _field(number, raw)
    return raw


def _groups(draw: random.Random) -> bytes:
    """Groups, an old form of nesting that parsers still read."""
    depth = draw.choice((1, 99, 100, 101, 10_000))
    return bytes((1 << 3 | 3,)) * depth + bytes((1 << 3 | 4,)) * draw.choice((0, depth))


def _numbers(draw: random.Random) -> bytes:
    return b"".join(bytes((draw.randint(1, 8) << 3,)) + _varint(draw.getrandbits(64)) for _ in range(20))


_SHAPES: tuple[Callable[[random.Random], bytes], ...] = (
    _many_fields,
    _long_repeats,
    _edges,
    _nested,
    _groups,
    _numbers,
)


def drawn(kind: Callable[[random.Random], Unary], seed: int) -> Iterator[Unary]:
    """Messages without end."""
    draw = random.Random(seed)
    while True:
        yield kind(draw)


def _field(number: int, payload: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))
