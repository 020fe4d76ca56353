"""`certificates`: an authority that stays, certificates that are renewed, and files as private as they must be."""

from pathlib import Path

import pytest
from cryptography import x509

from shared_model.__main__ import main


def made(folder: Path, *arguments: str) -> None:
    assert main(["certificates", str(folder), *arguments]) == 0


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_second_run_keeps_the_authority_and_renews_certificates(tmp_path: Path) -> None:
    made(tmp_path, "--host", "one")
    authority, key, before = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "ca.key").read_bytes(), tmp_path / "one"
    first = read(before / "cert.pem")
    made(tmp_path, "--host", "one", "--host", "two", "--days", "7")
    assert ((tmp_path / "ca.pem").read_bytes(), (tmp_path / "ca.key").read_bytes()) == (authority, key)
    second = read(before / "cert.pem")
    assert second.serial_number != first.serial_number
    assert second.not_valid_after_utc < first.not_valid_after_utc
    for host in ("one", "two"):
        read(tmp_path / host / "cert.pem").verify_directly_issued_by(read(tmp_path / host / "ca.pem"))


def test_names_and_numbers_are_in_the_certificate_and_keys_are_the_owners(tmp_path: Path) -> None:
    made(tmp_path, "--host", "replica-1,replica-1.example,10.0.0.7")
    folder = tmp_path / "replica-1"
    names = read(folder / "cert.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["replica-1", "replica-1.example", "localhost"]
    assert [str(it) for it in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1", "::1"]
    for secret in (tmp_path / "ca.key", folder / "key.pem"):
        assert secret.stat().st_mode & 0o777 == 0o600
    # The command has set umask 077, and containers of other users read these.
    readable = {folder: 0o755, folder / "cert.pem": 0o644, folder / "ca.pem": 0o644, tmp_path / "ca.pem": 0o644}
    assert {path: path.stat().st_mode & 0o777 for path in readable} == readable


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--host", "../up"), "--host: '../up' is no name of a host"),
        (("--host", "a,"), "--host: '' is no name of a host"),
        (("--days", "0"), "--days: is 0, must be positive"),
    ],
)
def test_wrong_arguments_make_nothing(
    arguments: tuple[str, ...], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certificates", str(tmp_path / "new"), *arguments]) == 2
    assert capsys.readouterr().err == f"shared_model certificates: {problem}\n"
    assert not (tmp_path / "new").exists()


def test_a_damaged_authority_is_named_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path)
    (tmp_path / "ca.key").write_text("torn")
    assert main(["certificates", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"shared_model certificates: {tmp_path}: ca.pem or ca.key cannot be read")
    assert (tmp_path / "ca.key").read_text() == "torn"
