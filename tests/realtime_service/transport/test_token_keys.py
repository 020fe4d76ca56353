"""The public keys of tokens: what may be in their file or behind their URL, and what happens when it changes."""

import http.server
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from realtime_service.errors import Unauthenticated
from realtime_service.settings import ServiceSettings
from realtime_service.transport.authentication import Callers, TokenRules
from realtime_service.transport.token_keys import TokenKeys
from shared_model.clock import SimulatedClock
from shared_model.errors import SettingError
from tests.realtime_service import tokens
from tests.realtime_service.tokens import EC, ED, RSA, bearer, jwk, key_file, pem
from tests.realtime_service.transport.test_authentication import NOW, context, token


def keys_of(source: object) -> TokenKeys:
    return TokenKeys(ServiceSettings(token_keys=str(source)), SimulatedClock(NOW))


def callers_of(keys: TokenKeys) -> Callers:
    return Callers(keys, TokenRules(required=True), SimulatedClock(NOW))


def test_a_jwks_names_its_keys(tmp_path: Path) -> None:
    described = [jwk(ED, "EdDSA", kid="new"), jwk(RSA, "RS256", kid="old"), jwk(EC, "ES256", use="enc")]
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": described}))
    callers = callers_of(keys_of(tmp_path / "jwks.json"))
    for valid in (token(headers={"kid": "new"}), token(RSA, "RS256", headers={"kid": "old"}), token(RSA, "RS256")):
        assert callers.of(context(bearer(valid))).key == "token:alice"
    for wrong in (token(headers={"kid": "old"}), token(EC, "ES256"), token(RSA, "PS256", headers={"kid": "old"})):
        with pytest.raises(Unauthenticated):
            callers.of(context(bearer(wrong)))


def private_pem(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


DSA = dsa.generate_private_key(1024)  # noqa: S505 - the service must refuse it, and a longer one takes a second
SMALL = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - the service must refuse it
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
    "for other things": (pem(DSA), "of a kind that signs no tokens"),
    "small": (pem(ED) + pem(SMALL), "holds an RSA key of 1024 bits, and 2048 are the least"),
    "small jwk": (json.dumps(jwk(SMALL, "RS256")).encode(), "holds an RSA key of 1024 bits, and 2048 are the least"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, what: str) -> None:
    contents, says = WRONG[what]
    (tmp_path / "keys").write_bytes(contents)
    with pytest.raises(SettingError) as error:
        keys_of(tmp_path / "keys")
    assert str(error.value).startswith(f"TANDEM_TOKEN_KEYS={tmp_path}/keys: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("/nowhere", r"TANDEM_TOKEN_KEYS=/nowhere: cannot be read: No such file"),
        ("http://10.0.0.7/jwks", r"expected a file, https://, or http:// on a loopback address"),
        ("file:///etc/passwd", r"expected a file, https://, or http:// on a loopback address"),
        ("http://127.0.0.1:1/jwks", r"TANDEM_TOKEN_KEYS=http://127.0.0.1:1/jwks: cannot be fetched: "),
    ],
)
def test_a_source_that_cannot_be_used_is_named(source: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        keys_of(source)


def test_without_a_source_there_are_no_keys() -> None:
    assert keys_of("").current == ()


async def test_a_damaged_new_file_keeps_the_old_keys_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = key_file(tmp_path)
    keys = keys_of(file)
    callers = callers_of(keys)
    file.write_text("damaged")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await keys.refresh()
    [line] = caplog.messages
    assert line == f"TANDEM_TOKEN_KEYS={file}: holds no public key that tokens could be signed by; " + (
        "the former keys stay in force"
    )
    assert callers.of(context(bearer(token()))).verified
    key_file(tmp_path, RSA)
    await keys.refresh()
    with pytest.raises(Unauthenticated):
        callers.of(context(bearer(token())))


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of a JWKS, and what is served there: "keys", or nothing."""
    document: dict[str, Any] = {"asked": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document["asked"] += 1
            self.send_response(200 if "keys" in document else 503)
            self.end_headers()
            if "keys" in document:
                self.wfile.write(json.dumps({"keys": document["keys"]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/jwks", document
    server.shutdown()
    server.server_close()
    thread.join()


async def test_keys_behind_a_url_follow_its_rotation(served: tuple[str, dict[str, Any]]) -> None:
    url, document = served
    document["keys"] = [jwk(ED, "EdDSA", kid="old")]
    callers = callers_of(keys_of(url))
    old = context(bearer(token(headers={"kid": "old"})))
    assert (await callers.identify(old)).key == "token:alice"
    document["keys"] = [jwk(RSA, "RS256", kid="new")]
    new = context(bearer(token(RSA, "RS256", headers={"kid": "new"})))
    assert (await callers.identify(new)).key == "token:alice"
    with pytest.raises(Unauthenticated):
        await callers.identify(old)
    assert document["asked"] == 2


async def test_a_url_that_does_not_answer_keeps_the_keys(served: tuple[str, dict[str, Any]]) -> None:
    url, document = served
    document["keys"] = [jwk(ED, "EdDSA", kid="old")]
    keys = keys_of(url)
    del document["keys"]
    await keys.refresh()
    assert document["asked"] == 2
    assert callers_of(keys).of(context(bearer(tokens.token(now=NOW)))).verified
