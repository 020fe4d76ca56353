"""Keys in files: who makes them, who can read them, and what counts without them."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared_model.errors import SettingError, Untrusted
from shared_model.settings import StateSettings
from shared_model.trust import keyring
from shared_model.trust.keyring import CLUSTER, OPERATOR, OPERATORS, Keyring, Signature

EXTERNAL = "redis://127.0.0.1:1"


def test_processes_that_start_at_once_agree_on_keys_that_only_their_user_can_read(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: keyring.load(StateSettings(state=tmp_path)), range(16)))
    assert len(set(found)) == 1
    assert len(found[0].cluster) >= 32
    assert len(found[0].operators) == 1
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for name in (CLUSTER, OPERATOR, OPERATORS):
        assert stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode) == 0o600
    assert found[0].cluster.decode() not in repr(found[0])


def test_with_an_external_redis_keys_are_not_made_silently(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = keyring.load(StateSettings(state=tmp_path, redis_url=EXTERNAL))
    assert not (tmp_path / "keys").exists()
    keyring.warn_of_missing(keys)
    (line,) = caplog.messages
    assert line.startswith(f"no cluster.key and no operators.pub in {tmp_path / 'keys'}: ")
    assert line.endswith("`python -m shared_model keys` makes them")


def test_a_machine_that_only_verifies_makes_no_operator_key(tmp_path: Path) -> None:
    keyring.make(tmp_path / "there", cluster=False, operator=True)
    keys = tmp_path / "here" / "keys"
    keys.mkdir(parents=True)
    (keys / OPERATORS).write_bytes((tmp_path / "there" / OPERATORS).read_bytes())
    found = keyring.load(StateSettings(state=tmp_path / "here"))
    assert found.operators
    assert not found.operator
    with pytest.raises(SettingError, match=r"has no operator.key, and operators.pub wants an operator's signature"):
        found.sign(b"statement")


def test_a_signature_counts_by_its_operator_and_statement(tmp_path: Path) -> None:
    keyring.make(tmp_path, cluster=False, operator=True)
    keyring.make(tmp_path / "other", cluster=False, operator=True)
    ours = keyring.load(StateSettings(keys=str(tmp_path), redis_url=EXTERNAL))
    theirs = keyring.load(StateSettings(keys=str(tmp_path / "other"), redis_url=EXTERNAL))
    signed = ours.sign(b"statement")
    assert signed
    ours.check(b"statement", signed)
    for statement, signature, why in (
        (b"statement", None, "is unsigned"),
        (b"statements", signed, "has a wrong signature"),
        (b"statement", theirs.sign(b"statement"), "is signed by .* lacks"),
        (b"statement", Signature(signed.signer, b""), "has a wrong signature"),
    ):
        with pytest.raises(Untrusted, match=why):
            ours.check(statement, signature)


@pytest.mark.parametrize("signed", [True, False])
def test_accepting_the_unsigned_accepts_nothing_wrongly_signed(tmp_path: Path, signed: bool) -> None:
    keyring.make(tmp_path, cluster=False, operator=True)
    state = StateSettings(keys=str(tmp_path), redis_url=EXTERNAL, unsigned="accept")
    accepting = keyring.load(state)
    if not signed:
        return accepting.check(b"statement", None)
    with pytest.raises(Untrusted):
        accepting.check(b"another", accepting.sign(b"statement"))


def test_a_short_cluster_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / CLUSTER).write_text("short")
    with pytest.raises(SettingError, match=r"cluster.key: holds 5 bytes, and a key has 32 or more"):
        keyring.load(StateSettings(keys=str(tmp_path), redis_url=EXTERNAL))


def test_without_keys_nothing_is_checked() -> None:
    Keyring().check(b"statement", None)
    assert Keyring().sign(b"statement") is None
