"""Who calls, over a real socket: a verified token, else what the caller says, else its address."""

import asyncio
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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import example, given
from hypothesis import strategies as st

from realtime_service.errors import Unauthenticated
from realtime_service.identity import Identity, Role, pack, unpack
from realtime_service.settings import ServiceSettings
from realtime_service.transport import rpc_handlers
from realtime_service.transport.authentication import MAX_NAME, Callers, TokenRules
from realtime_service.transport.rpc_handlers import Arrival
from realtime_service.transport.token_keys import TokenKey, TokenKeys
from shared_model.clock import SimulatedClock
from shared_model.errors import SettingError
from shared_model.types import ServingPath
from tests.realtime_service import tokens
from tests.realtime_service.receptions import Reception
from tests.realtime_service.tokens import EC, ED, PRIVATE, RSA, Metadata, bearer, jwk, key_file

NOW = 1_000_000.0
REQUIRED = TokenRules(required=True)
STRICT = TokenRules(required=True, audience="tandem", issuer="https://idp")

Told = tuple[grpc.StatusCode, str]
Ask = Callable[..., Any]


def token(*key: Any, **claims: Any) -> str:
    return tokens.token(*key, now=NOW, **claims)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(NOW)


@pytest.fixture
def keys(tmp_path: Path, clock: SimulatedClock) -> TokenKeys:
    return TokenKeys(ServiceSettings(token_keys=str(key_file(tmp_path))), clock)


@pytest.fixture
def callers(keys: TokenKeys, clock: SimulatedClock) -> Callers:
    return Callers(keys, TokenRules(), clock)


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Calls a server on a real socket: how it ended, and who the server says called."""
    served: list[Callers] = []

    async def whoami(raw: bytes, context: rpc_handlers.Context, arrival: Arrival) -> StringValue:
        return StringValue(value=f"{arrival.caller.key} {arrival.caller.quota_key}")

    async def identify(context: rpc_handlers.Context) -> Identity:
        return await served[-1].identify(context)

    server = grpc.aio.server()
    answering = rpc_handlers.Handlers(Reception(identify)).unary(whoami)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"Who": answering}),))
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


def context(metadata: Metadata, peer: str = "ipv4:10.0.0.7:4711") -> Any:
    """For many calls in a row, of which the socket is not the subject."""
    return SimpleNamespace(invocation_metadata=lambda: metadata, peer=lambda: peer)


async def test_without_keys_a_token_is_ignored(ask: Ask, clock: SimulatedClock) -> None:
    callers = Callers(TokenKeys(ServiceSettings(), clock), TokenRules(), clock)
    named = (("x-caller-id", "bob"),)
    bob = (grpc.StatusCode.OK, "claimed:bob addr:127.0.0.1")
    assert await ask(callers, named) == bob
    assert await ask(callers, bearer("rubbish") + named) == bob
    assert await ask(callers, bearer(token())) == (grpc.StatusCode.OK, "addr:127.0.0.1 addr:127.0.0.1")


async def test_with_keys_a_token_comes_before_what_the_caller_says(ask: Ask, callers: Callers) -> None:
    named = (("x-caller-id", "bob"),)
    alice, bob = (grpc.StatusCode.OK, "token:alice token:alice"), (grpc.StatusCode.OK, "claimed:bob addr:127.0.0.1")
    for algorithm, key in PRIVATE.items():
        assert await ask(callers, named + bearer(token(key, algorithm))) == alice
    assert await ask(callers, (("authorization", f"bearer  {token()}"),)) == alice
    assert await ask(callers, named) == bob
    assert await ask(callers, (("authorization", "Basic Ym9iOng="), *named)) == bob
    assert await ask(callers, (("x-caller-id", ""),)) == (grpc.StatusCode.OK, "addr:127.0.0.1 addr:127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "quota_key"),
    [
        ("ipv4:10.0.0.7:4711", "addr:10.0.0.7"),
        ("ipv6:%5B::1%5D:4711", "addr:::1"),
        ("ipv6:[fe80::1%25eth0]:4711", "addr:fe80::1%eth0"),
        # A caller usually has all addresses of a network of 64 bits.
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711", "addr:2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:ffff::%5D:4712", "addr:2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:3::1%5D:4711", "addr:2001:db8:1:3::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:4711", "addr:10.0.0.7"),
        ("unix:", "addr:unix"),
        ("unix:/run/tandem.sock", "addr:unix"),
        ("unix-abstract:tandem", "addr:unix"),
    ],
)
def test_an_unverified_caller_is_its_address_whatever_it_claims(callers: Callers, peer: str, quota_key: str) -> None:
    assert callers.of(context((), peer)).key == quota_key
    for name in ("alice", "bob", "token:alice"):
        found = callers.of(context((("x-caller-id", name),), peer))
        assert (found.key, found.quota_key, found.verified) == (f"claimed:{name}", quota_key, False)


NEEDED = "a call needs a bearer token: metadata `authorization: Bearer TOKEN`"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("x-caller-id", "alice"),),
        (("authorization", "Basic Ym9iOng="),),
        (("authorization", ""),),
    ],
)
async def test_where_a_token_is_required_nothing_else_will_do(
    ask: Ask, keys: TokenKeys, clock: SimulatedClock, metadata: Metadata
) -> None:
    callers = Callers(keys, REQUIRED, clock)
    assert await ask(callers, metadata) == (grpc.StatusCode.UNAUTHENTICATED, NEEDED)
    assert await ask(callers, metadata + bearer(token())) == (grpc.StatusCode.OK, "token:alice token:alice")


def test_a_tab_is_no_space(keys: TokenKeys, clock: SimulatedClock) -> None:
    """Other clients than gRPC's own may send it."""
    with pytest.raises(Unauthenticated, match="needs a bearer token"):
        Callers(keys, REQUIRED, clock).of(context((("authorization", f"Bearer\t{token()}"),)))


def unsigned(**header: str) -> str:
    parts = ({"alg": "none", **header}, {"sub": "alice", "exp": NOW + 60})
    return ".".join(base64.urlsafe_b64encode(json.dumps(it).encode()).decode().rstrip("=") for it in parts) + "."


NOT_VALID = "the bearer token is not valid"
NO_TIME = "the bearer token is not valid: its claim 'exp' is not a time"
NO_NAME = f"the bearer token names no caller: `sub` must have 1 to {MAX_NAME} printable characters"
TOO_LONG = "the bearer token is valid for longer than 24 hours"
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
    "of nobody": (token(sub=None), "the bearer token has no claim 'sub'"),
    "of no name": (token(sub=""), NO_NAME),
    "of a name that would be cut": (token(sub="a" * (MAX_NAME + 1)), NO_NAME),
    "of a name that no message could carry": (token(sub="\ud800"), NO_NAME),
    "of a name with a line end": (token(sub="alice\nbob"), NO_NAME),
    "without an end": (token(exp=None), "the bearer token has no claim 'exp'"),
    "of an endless end": (token(exp=10**400), NO_TIME),
    "of an infinite end": (token(exp=float("inf")), NO_TIME),
    "of an odd end": (token(exp=float("nan")), NO_TIME),
    "of a boolean end": (token(exp=True), NO_TIME),
    "expired": (token(exp=NOW - 60), "the bearer token has expired"),
    "not yet": (token(nbf=NOW + 61), "the bearer token is not valid yet"),
    "of the future": (token(iat=NOW + 61), "the bearer token is not valid yet"),
    "for too long": (token(exp=NOW + 24 * 3600 + 1), TOO_LONG),
    "for too long since it was made": (token(iat=NOW - 24 * 3600), TOO_LONG),
    "of roles that are no list": (
        token(roles="operator"),
        "the bearer token is not valid: its claim 'roles' must be a list of names",
    ),
}


@pytest.mark.parametrize("what", INVALID)
async def test_a_token_that_is_not_valid_ends_the_call(ask: Ask, callers: Callers, what: str) -> None:
    given_, says = INVALID[what]
    metadata = (*bearer(given_), ("x-caller-id", "bob"))
    for _ in range(2):
        assert await ask(callers, metadata) == (grpc.StatusCode.UNAUTHENTICATED, says)


def test_a_clock_may_differ_by_a_minute_and_a_token_be_valid_for_a_day(callers: Callers) -> None:
    for claims in ({"nbf": NOW + 59, "iat": NOW + 59}, {"exp": NOW - 59}, {"exp": NOW + 24 * 3600}):
        assert callers.of(context(bearer(token(**claims)))).key == "token:alice"


OTHER = "the bearer token is for another audience, or of another issuer"


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"aud": "tandem", "iss": "https://idp"}, ""),
        ({"aud": ["other", "tandem"], "iss": "https://idp"}, ""),
        ({"aud": "other", "iss": "https://idp"}, OTHER),
        ({"aud": "tandem", "iss": "https://idp2"}, OTHER),
        ({"iss": "https://idp"}, "the bearer token has no claim 'aud'"),
        ({"aud": "tandem"}, "the bearer token has no claim 'iss'"),
    ],
)
def test_a_token_is_for_us_and_of_our_issuer(
    keys: TokenKeys, clock: SimulatedClock, claims: dict[str, Any], says: str
) -> None:
    strict = Callers(keys, STRICT, clock)
    if not says:
        assert strict.of(context(bearer(token(**claims)))).verified
        return
    with pytest.raises(Unauthenticated) as error:
        strict.of(context(bearer(token(**claims))))
    assert str(error.value) == says


def test_a_token_is_verified_once_until_it_expires(
    callers: Callers, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifying = Mock(side_effect=jwt.decode)
    monkeypatch.setattr(jwt, "decode", verifying)
    asking = context(bearer(token()))
    for _ in range(100):
        assert callers.of(asking).key == "token:alice"
    assert verifying.call_count == 1
    clock.advance(119.9)
    assert callers.of(asking).key == "token:alice"
    clock.advance(0.2)
    with pytest.raises(Unauthenticated, match="expired"):
        callers.of(asking)


def test_only_so_many_tokens_are_remembered(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime_service.transport.authentication._REMEMBERED", 20)
    verifying = Mock(side_effect=jwt.decode)
    monkeypatch.setattr(jwt, "decode", verifying)
    many = [context(bearer(token(sub=f"caller {number}"))) for number in range(40)]
    assert [callers.of(it).key for it in many] == [f"token:caller {number}" for number in range(40)]
    assert [callers.of(it).key for it in many[20:]] == [f"token:caller {number}" for number in range(20, 40)]
    assert verifying.call_count == 40
    callers.of(many[0])
    assert verifying.call_count == 41


def test_a_claimed_name_is_fit_to_be_told(callers: Callers) -> None:
    assert callers.of(context((("x-caller-id", "b" * 1000),))).key == "claimed:" + "b" * MAX_NAME


@example(rubbish="\ud800", place=0, character="e")
@given(st.text(max_size=60), st.integers(0, 200), st.characters())
def test_whatever_a_token_is_the_caller_is_told_and_nothing_else_is_raised(
    rubbish: str, place: int, character: str
) -> None:
    clock = SimulatedClock(NOW)
    keys = TokenKeys(ServiceSettings(), clock)
    keys.current = (TokenKey(ED.public_key(), ("EdDSA",)),)
    callers = Callers(keys, REQUIRED, clock)
    whole = token()
    place %= len(whole)
    for broken in (rubbish, whole[:place] + character + whole[place + 1 :], whole[:place]):
        try:
            assert callers.of(context(bearer(broken))).key == "token:alice"
            assert broken == whole
        except Unauthenticated:
            pass


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({}, {"roles": {Role.CALLER}}),
        ({"roles": ["night", "unheard of"]}, {"roles": {Role.NIGHT}, "sees_precomputed": True}),
        ({"roles": []}, {"roles": set()}),
        ({"roles": ["operator"]}, {"roles": {Role.OPERATOR}, "sees_internals": True, "sees_precomputed": True}),
        ({"lanes": ["dynamic", "fast"]}, {"lanes": {ServingPath.DYNAMIC}}),
        ({"models": []}, {"models": set()}),
        ({"sees_precomputed": True}, {"sees_precomputed": True}),
        ({"sees_precomputed": "yes"}, {}),
    ],
)
def test_claims_are_permissions_and_travel_to_other_replicas(
    keys: TokenKeys, clock: SimulatedClock, claims: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = Callers(keys, REQUIRED, clock).of(context(bearer(token(**claims))))
    sets = {name: frozenset(value) if isinstance(value, set) else value for name, value in expected.items()}
    assert found == Identity("token:alice", "token:alice", verified=True, **sets)
    assert unpack(pack(found)) == found


@pytest.mark.parametrize(
    ("rules", "sees"),
    [
        (TokenRules(), True),
        (TokenRules(local=False), False),
        (TokenRules(required=True), False),
    ],
)
def test_only_on_a_loopback_address_without_tokens_everyone_sees_what_operators_see(
    keys: TokenKeys, clock: SimulatedClock, rules: TokenRules, sees: bool
) -> None:
    found = Callers(keys, rules, clock).of(context(bearer(token())))
    assert (found.sees_internals, found.sees_precomputed) == (sees, sees)
    if not rules.required:
        found = Callers(keys, rules, clock).of(context(()))
        assert (found.sees_internals, found.sees_precomputed) == (sees, sees)


def test_a_token_required_without_keys_is_refused_in_one_line() -> None:
    with pytest.raises(SettingError, match=r"^TANDEM_AUTH='required': needs TANDEM_TOKEN_KEYS, .*$"):
        ServiceSettings(auth="required")
    assert ServiceSettings(auth="required", token_keys="keys.pem")  # noqa: S106 - a file.token_required


async def test_new_keys_end_the_tokens_of_the_old(tmp_path: Path, keys: TokenKeys, clock: SimulatedClock) -> None:
    callers = Callers(keys, REQUIRED, clock)
    assert callers.of(context(bearer(token()))).verified
    key_file(tmp_path, EC)
    await keys.refresh()
    with pytest.raises(Unauthenticated, match="not valid"):
        callers.of(context(bearer(token())))
    assert callers.of(context(bearer(token(EC, "ES256")))).verified


async def test_calls_that_meet_a_new_key_wait_for_it_together(tmp_path: Path, clock: SimulatedClock) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(jwk(ED, "EdDSA", kid="old")))
    keys = TokenKeys(ServiceSettings(token_keys=str(file)), clock)
    callers = Callers(keys, REQUIRED, clock)
    file.write_text(json.dumps(jwk(RSA, "RS256", kid="new")))
    fresh = context(bearer(token(RSA, "RS256", headers={"kid": "new"})))
    found = await asyncio.gather(*(callers.identify(fresh) for _ in range(5)))
    assert {it.key for it in found} == {"token:alice"}
    unheard_of = context(bearer(token(headers={"kid": "unheard of"})))
    reading = Mock(side_effect=file.read_bytes)
    keys._read = reading
    for _ in range(5):
        with pytest.raises(Unauthenticated, match="not valid"):
            await callers.identify(unheard_of)
    assert reading.call_count == 0
    clock.advance(10.0)
    for _ in range(5):
        with pytest.raises(Unauthenticated, match="not valid"):
            await callers.identify(unheard_of)
    assert reading.call_count == 1
