"""uv finds what pip would find here: the same indexes, local wheels and certificates."""

import os
from pathlib import Path

import pytest
from tandem_stack import uv

from tests.stack.helpers import write_script


def without_settings(home: Path) -> dict[str, str]:
    """The environment of a person who has no settings of pip, except what is written in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "XDG_"))}
    return {**kept, "HOME": str(home)}


@pytest.mark.heavy
def test_pips_files_and_variables_are_translated(tmp_path: Path) -> None:
    """Variables win over files, and `[install]` over `[global]`; an empty variable says nothing."""
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://file.example/simple\nfind-links =\n    ~/wheels\n    https://links.example\n"
        "[install]\ntrusted-host = one.example two.example\ncert = /certs.pem\n"
    )
    given = {
        **without_settings(tmp_path),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PIP_INDEX_URL": "https://index.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://one.example/simple file:///two",
        "PIP_CERT": "",
        "PIP_NO_INDEX": "true",
    }

    pip = uv.pip_settings(given)

    environ = uv.environment(pip, {"HOME": str(tmp_path)})
    assert environ == {
        "HOME": str(tmp_path),
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_INDEX": "https://one.example/simple file:///two",
        "UV_FIND_LINKS": f"{Path('~/wheels').expanduser()},https://links.example",
        "UV_INSECURE_HOST": "one.example two.example",
        "SSL_CERT_FILE": "/certs.pem",
    }
    assert uv.options(pip) == ("--no-index",)


def test_without_settings_nothing_is_translated() -> None:
    assert set(uv.environment({}, {})) == {"UV_INDEX_STRATEGY", "UV_PYTHON_DOWNLOADS"}
    assert uv.options({"no-index": "0"}) == ()


def test_uvs_own_variables_win() -> None:
    assert (
        uv.environment({"index-url": "https://a"}, {"UV_DEFAULT_INDEX": "https://b"})["UV_DEFAULT_INDEX"] == "https://b"
    )


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("version", "taken"), [("0.9.30", False), (uv.VERSION, True), ("99.0.0 (abc 2030-01-01)", True)]
)
def test_a_uv_on_the_path_is_taken_unless_it_is_older(
    version: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = write_script(tmp_path / "bin", "uv", f"echo 'uv {version}'")
    own = tmp_path / ".tandem" / f"uv-{uv.VERSION}"
    own.mkdir(parents=True)
    monkeypatch.setattr(uv, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(on_path.parent))

    assert uv.program() == str(on_path if taken else own / "bin" / "uv")
