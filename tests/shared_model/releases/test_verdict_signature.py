"""Where keys are trusted, only a verdict that one of them signed decides: about a promotion, and at loading."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import redis

from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from shared_model.__main__ import main
from shared_model.errors import ReleaseError
from shared_model.evaluation import attestation, report
from shared_model.releases import pointer, signature, verdict_signature
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust import ed25519, keyring
from shared_model.types import Device, Precision
from tests.shared_model import small_release

INT8 = (Precision.INT8, Device.CPU)
FP16 = (Precision.FP16, Device.CUDA)


@pytest.fixture
def state(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> StateSettings:
    """Of an operator."""
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    monkeypatch.setenv("TANDEM_REDIS_URL", redis_url)
    keyring.make(tmp_path / "keys", cluster=False, operator=True)
    (tmp_path / "keys" / keyring.UNSETTLED).unlink()
    return StateSettings(state=tmp_path, redis_url=redis_url)


@pytest.fixture
def small(state: StateSettings) -> Release:
    """Signed by this operator."""
    release = small_release.passed(Store.from_settings(state), "small")
    small_release.sign_verdict(release, state.state)
    return release


def promoted(release: Release) -> int:
    return main(["promote", release.id])


def unsign(release: Release) -> None:
    (Path(release.place) / verdict_signature.NOTE).unlink()


def test_a_signed_verdict_counts(small: Release) -> None:
    assert attestation.has_verdict(small, *INT8)
    assert promoted(small) == 0


def changed(release: Release) -> None:
    """Passed, says the file; the operator had signed that it is refused."""
    small_release.judge(release, ("is slow",))
    small_release.sign_verdict(release, Path(release.files.root).parent)
    small_release.judge(release)


def of_another_release(release: Release) -> None:
    other = small_release.passed(Store(release.files.root, load_keys=lambda: keyring.load(StateSettings())), "other")
    small_release.sign_verdict(other, Path(release.files.root).parent)
    for note in (report.JSON, verdict_signature.NOTE):
        release.write_note(note, (other.read_note(note) or b"").replace(other.id.encode(), release.id.encode()))


@pytest.mark.parametrize("spoil", [changed, of_another_release])
def test_a_verdict_changed_after_its_signature_is_refused(
    small: Release, spoil: Callable[[Release], None], capsys: pytest.CaptureFixture[str], redis_client: "redis.Redis"
) -> None:
    spoil(small)
    assert promoted(small) == 2
    (line,) = capsys.readouterr().err.splitlines()
    where = f"{small.place}/report.json"
    assert line.startswith(f"shared_model promote: release {small.id}: {where} is not the one that ")
    assert line.endswith(f"signed; copy the release again, or run `python -m shared_model gate {small.id}`")
    assert not redis_client.exists(*pointer.script_keys())
    with pytest.raises(ReleaseError, match="is not the one that"):
        attestation.ensure(small, *INT8, threads=1)
    # Nor is it signed as it is.
    assert main(["sign", small.id, "--key", str(Path(small.files.root).parent / "keys" / keyring.OPERATOR)]) == 2


@pytest.mark.parametrize("command", [("promote",), ("canary", "--default", "--weight=0.5")])
def test_an_unsigned_verdict_is_refused_until_an_operator_signs_it(
    small: Release, state: StateSettings, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    if command[0] == "canary":
        pointer.promote(Store.from_settings(state), None, "other-0123456789ab")
    unsign(small)
    assert main([*command, small.id]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"release {small.id}: {small.place}/report.json is not signed by an operator or a trusted key; " in line
    assert f"`python -m shared_model sign {small.id} --key KEY` signs this verdict" in line
    assert main(["sign", small.id, "--key", str(state.keys_dir / keyring.OPERATOR)]) == 0
    assert capsys.readouterr().out.endswith("the verdict of its gate, too: passed\n")
    assert main([*command, small.id]) == 0


def test_a_key_that_signs_releases_signs_the_verdict_too(
    small: Release, state: StateSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without operators' keys."""
    private, public = ed25519.generate("release")
    (tmp_path / "release.key").write_bytes(private)
    (tmp_path / "release.pub").write_bytes(public)
    monkeypatch.setenv("TANDEM_KEYS", str(tmp_path / "none"))
    monkeypatch.setenv("TANDEM_TRUSTED_KEYS", str(tmp_path / "release.pub"))
    _, note = signature.sign(small.manifest, None, private, "release.key")
    small.write_note(signature.NOTE, note)
    # As a former version signed it: it opens, and is not promoted.
    unsign(small)
    Store(state.releases_root, ed25519.read_public_keys(tmp_path / "release.pub", "keys")).open(small.id).verify()
    assert promoted(small) == 2
    assert main(["sign", small.id, "--key", str(tmp_path / "release.key")]) == 0
    assert promoted(small) == 0


def test_without_keys_any_verdict_counts(
    small: Release, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(small)
    monkeypatch.setenv("TANDEM_UNSIGNED", "accept")
    assert promoted(small) == 0
    monkeypatch.delenv("TANDEM_UNSIGNED")
    monkeypatch.setenv("TANDEM_KEYS", str(tmp_path / "none"))
    assert promoted(small) == 0
    assert attestation.has_verdict(Store(small.files.root).open(small.id), *INT8)


def test_a_process_judges_by_itself_what_no_key_signed(small: Release, caplog: pytest.LogCaptureFixture) -> None:
    """Its tokenizer is damaged, which judging it finds."""
    unsign(small)
    small.write_note("proof-int8-cpu.json", small.read_note(report.JSON) or b"")
    (Path(small.place) / "tokenizer.json").write_bytes(b"gone")
    assert not attestation.has_verdict(small, *INT8)
    with pytest.raises(ReleaseError, match="does not match its sha256"):
        attestation.ensure(small, *INT8, threads=1)
    assert any("report.json is not signed by an operator" in line for line in caplog.messages)
    unkeyed = Store(small.files.root).open(small.id)
    attestation.ensure(unkeyed, *INT8, threads=1)


def test_a_proof_counts_for_what_the_signed_report_leaves_open(small: Release) -> None:
    proof = f'{{"release": "{small.id}", "variants": [{{"precision": "fp16", "device": "cuda", "passed": true}}]}}'
    assert not attestation.has_verdict(small, *FP16)
    small.write_note("proof-fp16-cuda.json", proof.encode())
    assert attestation.has_verdict(small, *FP16)
    unsign(small)
    assert not attestation.has_verdict(small, *FP16)


def test_executors_ask_for_the_drivers_operators(small: Release, state: StateSettings) -> None:
    options = ScoringOptions.from_settings(state, NightlySettings(), small.id, Device.CPU)
    assert options.keys == options.keys.public
    assert attestation.has_verdict(options.store().open(small.id), *INT8)
    changed(small)
    with pytest.raises(ReleaseError, match="is not the one that"):
        attestation.has_verdict(options.store().open(small.id), *INT8)


def test_what_the_pointer_named_before_the_first_key_is_signed_with_it(tmp_path: Path) -> None:
    plain = Store(tmp_path / "releases")
    one, two, other = (small_release.passed(plain, name) for name in ("one", "two", "other"))
    pointer.promote(plain, None, one.id)
    pointer.promote(plain, None, two.id)
    state = StateSettings(state=tmp_path)
    store = Store(state.releases_root, load_keys=partial(keyring.load, state))
    assert pointer.read(store, None).active == two.id
    signed = {it.id for it in (one, two, other) if attestation.has_verdict(store.open(it.id), *INT8)}
    assert signed == {one.id, two.id}
