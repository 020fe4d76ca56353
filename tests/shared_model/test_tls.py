"""Certificates are checked when they are read, and read again when their files change."""

import os
import time
from pathlib import Path

import pytest

from shared_model import settings
from shared_model.errors import SettingError
from shared_model.tls import CertificateFiles, TlsSettings
from tests.certified import Certified, certified


@pytest.fixture
def own(tmp_path: Path) -> Certified:
    return certified(tmp_path / "own")


def refused(loaded: TlsSettings) -> str:
    with pytest.raises(SettingError) as error:
        CertificateFiles(loaded)
    (line,) = str(error.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("TANDEM_TLS_CERT", "TANDEM_TLS_CERT is set: set TANDEM_TLS_KEY, too"),
        ("TANDEM_TLS_KEY", "TANDEM_TLS_KEY is set: set TANDEM_TLS_CERT, too"),
        ("TANDEM_TLS_CLIENT_CA", "TANDEM_TLS_CLIENT_CA is set: set TANDEM_TLS_CERT, too"),
    ],
)
def test_half_a_pair_is_refused(given: str, line: str) -> None:
    with pytest.raises(SettingError) as error:
        settings.load(TlsSettings, {given: "/somewhere.pem"})
    assert str(error.value) == line


def test_files_that_cannot_serve_are_named_with_the_problem(own: Certified, tmp_path: Path) -> None:
    other, junk, absent = certified(tmp_path / "other"), tmp_path / "junk.pem", tmp_path / "absent.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    wrong = {
        own.settings(tls_key=str(other.key)): f"TANDEM_TLS_KEY={other.key}: is not the key of {own.cert}",
        own.settings(tls_cert=str(absent)): f"TANDEM_TLS_CERT={absent}: cannot be read: No such file or directory",
        own.settings(tls_cert=str(junk)): f"TANDEM_TLS_CERT={junk}: holds no certificate in PEM form",
        own.settings(tls_key=str(junk)): f"TANDEM_TLS_KEY={junk}: holds no private key in PEM form without a password",
        own.settings(tls_ca=str(own.key)): f"TANDEM_TLS_CA={own.key}: holds no certificate in PEM form",
        own.settings(tls_client_ca=str(absent)): f"TANDEM_TLS_CLIENT_CA={absent}: cannot be read: No such file or "
        "directory",
    }
    assert {loaded: refused(loaded) for loaded in wrong} == wrong


def test_a_certificate_that_has_expired_is_refused(own: Certified) -> None:
    own.renew(days=-1e-5)
    assert refused(own.settings()).startswith(f"TANDEM_TLS_CERT={own.cert}: is valid from ")


def test_unchanged_files_are_not_read_again(own: Certified) -> None:
    files = CertificateFiles(own.settings())
    assert files.current() is files.current()


def test_a_damaged_pair_keeps_the_one_before_and_says_so_once(own: Certified, caplog: pytest.LogCaptureFixture) -> None:
    files = CertificateFiles(own.settings())
    before, whole = files.current(), own.cert.read_bytes()
    own.cert.write_bytes(whole[:100])
    assert [files.current() for _ in range(3)] == [before] * 3
    (line,) = [it.getMessage() for it in caplog.records]
    assert line == f"TANDEM_TLS_CERT={own.cert}: holds no certificate in PEM form; what was read before stays in use"
    own.cert.unlink()
    assert files.current() is before
    own.renew()
    assert files.current().cert == own.cert.read_bytes() != before.cert


def test_a_pair_behind_a_swapped_link_is_read_as_kubernetes_swaps_it(tmp_path: Path) -> None:
    """`cert.pem` links to `..data/cert.pem`, and `..data` to a folder; a renewal renames another link over `..data`."""
    first, second = certified(tmp_path / "first"), certified(tmp_path / "second")
    (tmp_path / "..data").symlink_to(first.cert.parent)
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).symlink_to(Path("..data") / name)
    files = CertificateFiles(TlsSettings(tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")))
    assert files.current().cert == first.cert.read_bytes()
    (tmp_path / "..next").symlink_to(second.cert.parent)
    os.replace(tmp_path / "..next", tmp_path / "..data")
    assert files.current().cert == second.cert.read_bytes()


def test_a_pair_of_the_same_size_and_time_is_noticed(own: Certified) -> None:
    """By its inodes: a renewal may keep the time of its source."""

    def replace(by: Certified) -> None:
        for path, source in ((own.cert, by.cert), (own.key, by.key)):
            # Made while the old file is still there: it cannot have the same inode.
            part = path.with_suffix(".part")
            part.write_bytes(source.read_bytes().ljust(2_000, b"\n"))
            os.utime(part, (1.0, 1.0))
            part.replace(path)

    replace(own)
    files = CertificateFiles(own.settings(tls_ca=""))
    before = files.current()
    replace(certified(own.folder.parent / "renewed"))
    assert files.current() is not before


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1"])
def test_loopback_needs_no_tls(address: str) -> None:
    TlsSettings().check_bind("TANDEM_GRPC_ADDRESS", address)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1", "replica-1:1", "localhost.example:1"])
def test_another_address_needs_tls_or_a_word_that_says_otherwise(address: str, own: Certified) -> None:
    with pytest.raises(SettingError) as error:
        TlsSettings().check_bind("TANDEM_METRICS_ADDRESS", address)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"TANDEM_METRICS_ADDRESS={address}: ")
    assert "--insecure" in line
    assert "TANDEM_INSECURE=yes" in line
    settings.load(TlsSettings, {"TANDEM_INSECURE": "yes"}).check_bind("TANDEM_METRICS_ADDRESS", address)
    own.settings().check_bind("TANDEM_METRICS_ADDRESS", address)


def test_the_end_of_a_certificate_is_that_of_the_one_in_use(own: Certified) -> None:
    files = CertificateFiles(own.settings())
    assert files.current().ends == pytest.approx(time.time() + 86_400, abs=3_600)
    own.renew(days=3)
    assert files.current().ends == pytest.approx(time.time() + 3 * 86_400, abs=3_600)
    assert CertificateFiles(TlsSettings()).current().ends == 0.0
