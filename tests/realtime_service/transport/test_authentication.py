"""Who calls, over a real socket: a verified token, else what the caller says, else its address."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import example, given
from hypothesis import strategies as st

from realtime_service.errors import Unauthenticated
from realtime_service.settings import ServiceSettings
from realtime_service.transport import rpc_handlers
from realtime_service.transport.authentication import MAX_NAME, Callers, TokenKey, token_keys
from shared_model.clock import SimulatedClock
from shared_model.errors import SettingError

ED = Ed25519PrivateKey.generate()
EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PRIVATE = {"EdDSA": ED, "ES256": EC, "RS256": RSA, "PS512": RSA}
NOW = 1_000.0

Metadata = tuple[tuple[str, str], ...]
Told = tuple[grpc.StatusCode, str]
Ask = Callable[..., Any]


def pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def jwk(key: Any, algorithm: str, **more: str) -> dict[str, Any]:
    described = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**described, "alg": algorithm, **more}


def token(key: Any = ED, algorithm: str = "EdDSA", *, headers: dict[str, str] | None = None, **claims: Any) -> str:
    """Of "alice", valid for a minute, unless the claims say otherwise; a claim of None is left out."""
    all_claims = {"sub": "alice", "exp": NOW + 60, **claims}
    return jwt.encode({k: v for k, v in all_claims.items() if v is not None}, key, algorithm, headers)


def bearer(value: str) -> Metadata:
    return (("authorization", f"Bearer {value}"),)


def keys_of(file: Path, contents: bytes) -> tuple[TokenKey, ...]:
    file.write_bytes(contents)
    return token_keys(ServiceSettings(token_keys=str(file)))


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(NOW)


@pytest.fixture
def callers(tmp_path: Path, clock: SimulatedClock) -> Callers:
    return Callers(keys_of(tmp_path / "keys.pem", b"# who makes our tokens\n" + pem(ED) + pem(EC) + pem(RSA)), clock)


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Calls a server on a real socket: how it ended, and who the server says called."""
    served: list[Callers] = []

    async def whoami(raw: bytes, context: rpc_handlers.Context) -> StringValue:
        return StringValue(value=served[-1].of(context))

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"Who": rpc_handlers.unary(whoami)}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def ask(callers: Callers, metadata: Metadata = ()) -> Told:
        served.append(callers)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                answer = await channel.unary_unary("/t/Who", None, None)(b"", metadata=metadata)
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details() or ""
        return grpc.StatusCode.OK, StringValue.FromString(answer).value

    yield ask
    await server.stop(None)


def context(metadata: Metadata) -> Any:
    """For many calls in a row, of which the socket is not the subject."""
    return SimpleNamespace(invocation_metadata=lambda: metadata, peer=lambda: "ipv4:10.0.0.7:4711")


async def test_without_keys_a_token_is_ignored(ask: Ask, clock: SimulatedClock) -> None:
    callers = Callers((), clock)
    named = (("x-caller-id", "bob"),)
    assert await ask(callers, named) == (grpc.StatusCode.OK, "bob")
    assert await ask(callers, bearer("rubbish") + named) == (grpc.StatusCode.OK, "bob")
    assert await ask(callers, bearer(token())) == (grpc.StatusCode.OK, "ipv4:127.0.0.1")


async def test_with_keys_a_token_comes_before_what_the_caller_says(ask: Ask, callers: Callers) -> None:
    named = (("x-caller-id", "bob"),)
    for algorithm, key in PRIVATE.items():
        assert await ask(callers, named + bearer(token(key, algorithm))) == (grpc.StatusCode.OK, "alice")
    assert await ask(callers, (("authorization", f"bearer  {token()}"),)) == (grpc.StatusCode.OK, "alice")
    assert await ask(callers, named) == (grpc.StatusCode.OK, "bob")
    assert await ask(callers, (("authorization", "Basic Ym9iOng="), *named)) == (grpc.StatusCode.OK, "bob")
    assert await ask(callers, (("x-caller-id", ""),)) == (grpc.StatusCode.OK, "ipv4:127.0.0.1")


def unsigned(**header: str) -> str:
    parts = ({"alg": "none", **header}, {"sub": "alice", "exp": NOW + 60})
    return ".".join(base64.urlsafe_b64encode(json.dumps(it).encode()).decode().rstrip("=") for it in parts) + "."


NOT_VALID = "the bearer token is not valid"
INVALID = {
    "nothing": ("", NOT_VALID),
    "rubbish": ("rubbish", NOT_VALID),
    "another's key": (token(Ed25519PrivateKey.generate()), NOT_VALID),
    "changed": (token()[:-4] + "AAAA", NOT_VALID),
    "unsigned": (unsigned(), NOT_VALID),
    # The public key as if it were a secret that both sides share.
    "confused": (unsigned(alg="HS256") + base64.urlsafe_b64encode(b"0" * 32).decode().rstrip("="), NOT_VALID),
    "another kind": (unsigned(alg="ES512") + "AAAA", NOT_VALID),
    "deep": (base64.urlsafe_b64encode(b"[" * 3000).decode() + ".e30.AAAA", NOT_VALID),
    "of nobody": (token(sub=None), NOT_VALID),
    "of no name": (token(sub=""), "the bearer token names nobody"),
    "without an end": (token(exp=None), NOT_VALID),
    "of an endless end": (token(exp=10**400), "the bearer token has expired"),
    "of an odd end": (token(exp=float("nan")), "the bearer token has expired"),
    "expired": (token(exp=NOW), "the bearer token has expired"),
    "not yet": (token(nbf=NOW + 31), "the bearer token is not valid yet"),
}


@pytest.mark.parametrize("what", INVALID)
async def test_a_token_that_is_not_valid_ends_the_call(ask: Ask, callers: Callers, what: str) -> None:
    given_, says = INVALID[what]
    metadata = (*bearer(given_), ("x-caller-id", "bob"))
    for _ in range(2):
        assert await ask(callers, metadata) == (grpc.StatusCode.UNAUTHENTICATED, says)


def test_a_clock_that_is_a_little_ahead_is_no_reason(callers: Callers) -> None:
    assert callers.of(context(bearer(token(nbf=NOW + 29, iat=NOW + 29)))) == "alice"


def test_whom_a_token_was_made_for_is_not_asked(callers: Callers) -> None:
    assert callers.of(context(bearer(token(aud="another service")))) == "alice"


def test_a_token_is_verified_once_until_it_expires(
    callers: Callers, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifying = Mock(side_effect=jwt.decode)
    monkeypatch.setattr(jwt, "decode", verifying)
    asking = context(bearer(token()))
    for _ in range(100):
        assert callers.of(asking) == "alice"
    assert verifying.call_count == 1
    clock.advance(59.9)
    assert callers.of(asking) == "alice"
    clock.advance(0.2)
    with pytest.raises(Unauthenticated, match="expired"):
        callers.of(asking)


def test_only_so_many_tokens_are_remembered(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime_service.transport.authentication._REMEMBERED", 20)
    verifying = Mock(side_effect=jwt.decode)
    monkeypatch.setattr(jwt, "decode", verifying)
    many = [context(bearer(token(sub=f"caller {number}"))) for number in range(40)]
    assert [callers.of(it) for it in many] == [f"caller {number}" for number in range(40)]
    assert [callers.of(it) for it in many[20:]] == [f"caller {number}" for number in range(20, 40)]
    assert verifying.call_count == 40
    callers.of(many[0])
    assert verifying.call_count == 41


def test_names_are_fit_to_be_told(callers: Callers) -> None:
    assert callers.of(context(bearer(token(sub="a" * 1000)))) == "a" * MAX_NAME
    assert callers.of(context((("x-caller-id", "b" * 1000),))) == "b" * MAX_NAME
    # What no message could carry.
    assert callers.of(context(bearer(token(sub="\ud800")))) == "?"


@example(rubbish="\ud800", place=0, character="e")
@given(st.text(max_size=60), st.integers(0, 200), st.characters())
def test_whatever_a_token_is_the_caller_is_told_and_nothing_else_is_raised(
    rubbish: str, place: int, character: str
) -> None:
    callers = Callers((TokenKey(ED.public_key(), ("EdDSA",)),), SimulatedClock(NOW))
    whole = token()
    place %= len(whole)
    for broken in (rubbish, whole[:place] + character + whole[place + 1 :], whole[:place]):
        try:
            assert callers.of(context(bearer(broken))) == "alice"
            assert broken == whole
        except Unauthenticated:
            pass


def test_a_jwks_names_its_keys(tmp_path: Path, clock: SimulatedClock) -> None:
    described = [jwk(ED, "EdDSA", kid="new"), jwk(RSA, "RS256", kid="old"), jwk(EC, "ES256", use="enc")]
    callers = Callers(keys_of(tmp_path / "jwks.json", json.dumps({"keys": described}).encode()), clock)
    assert callers.of(context(bearer(token(headers={"kid": "new"})))) == "alice"
    assert callers.of(context(bearer(token(RSA, "RS256", headers={"kid": "old"})))) == "alice"
    assert callers.of(context(bearer(token(RSA, "RS256")))) == "alice"
    for wrong in (token(headers={"kid": "old"}), token(EC, "ES256"), token(RSA, "PS256", headers={"kid": "old"})):
        with pytest.raises(Unauthenticated):
            callers.of(context(bearer(wrong)))


def private_pem(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


WRONG = {
    "empty": (b"", "holds no public key"),
    "no keys": (b'{"keys": []}', "holds no public key"),
    "private": (private_pem(ED), "holds a private key"),
    "private jwk": (json.dumps(jwk(ED, "EdDSA", d="AAAA")).encode(), "it holds a secret key"),
    "shared secret": (b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', "it holds a secret key"),
    "damaged jwk": (b'{"keys": [{"kty": "RSA"}]}', "it holds a key that cannot be read"),
    "no jwk": (b'{"keys": [7]}', "neither JWKS nor PEM"),
    "damaged json": (b'{"keys": ', "neither JWKS nor PEM"),
    "damaged pem": (pem(ED).replace(b"MC", b"%%"), "neither JWKS nor PEM"),
    "for other things": (pem(dsa.generate_private_key(2048)), "of a kind that signs no tokens"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, what: str) -> None:
    contents, says = WRONG[what]
    with pytest.raises(SettingError) as error:
        keys_of(tmp_path / "keys", contents)
    assert str(error.value).startswith(f"TANDEM_TOKEN_KEYS={tmp_path}/keys: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"TANDEM_TOKEN_KEYS=/nowhere: cannot be read: No such file"):
        token_keys(ServiceSettings(token_keys=str(Path("/nowhere"))))
    assert token_keys(ServiceSettings()) == ()
