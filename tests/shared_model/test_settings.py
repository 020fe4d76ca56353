"""Settings come from the environment, and a wrong one is named."""

from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from shared_model import settings
from shared_model.errors import SettingError
from shared_model.settings import Check, StateSettings, group, setting
from shared_model.types import Precision


@dataclass(frozen=True)
class Sample:
    rows: int = setting(64, "Rows.", Check(lambda rows: rows > 0, "a whole number above 0"))
    share: float = setting(0.5, "A share.", settings.POSITIVE)
    eager: bool = setting(False, "Hurry.")
    precision: Precision = setting(Precision.INT8, "Arithmetic.")
    folder: Path = setting(Path("/default"), "Where.")
    name: str = setting("", "What it is called.")


@dataclass(frozen=True)
class Whole:
    sample: Sample = group(Sample(rows=3))
    other: Sample = group(Sample())
    name: str = setting("", "What it is called.")


def test_nothing_set_is_the_defaults() -> None:
    assert settings.load(Sample, {}) == Sample()


def test_every_kind_is_read(tmp_path: Path) -> None:
    environment = {
        "TANDEM_ROWS": "8",
        "TANDEM_SHARE": "0.25",
        "TANDEM_EAGER": "yes",
        "TANDEM_PRECISION": "bf16",
        "TANDEM_FOLDER": str(tmp_path),
        "TANDEM_NAME": "x",
        "ROWS": "9",
    }
    assert settings.load(Sample, environment) == Sample(8, 0.25, True, Precision.BF16, tmp_path, "x")


@pytest.mark.parametrize("raw", ["1", "true", "Yes", "0", "FALSE", "no"])
def test_booleans_are_spelt_in_words_or_digits(raw: str) -> None:
    assert settings.load(Sample, {"TANDEM_EAGER": raw}).eager == (raw.lower() in ("1", "true", "yes"))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TANDEM_ROWS", "many", "a whole number above 0"),
        ("TANDEM_ROWS", "1.5", "a whole number above 0"),
        ("TANDEM_ROWS", "0", "a whole number above 0"),
        ("TANDEM_SHARE", "half", "a number above 0"),
        ("TANDEM_SHARE", "nan", "a number above 0"),
        ("TANDEM_SHARE", "inf", "a number above 0"),
        ("TANDEM_EAGER", "maybe", "a value of type bool"),
        ("TANDEM_PRECISION", "int4", "a value of type Precision"),
    ],
)
def test_a_wrong_value_names_the_variable_the_value_and_what_was_expected(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingError) as error:
        settings.load(Sample, {name: value})
    assert str(error.value) == f"{name}={value!r}: expected {expected}"


@pytest.mark.parametrize("url", ["s3://b/x", "file:///x", "gs://b/x"])
def test_a_url_is_no_local_folder(url: str) -> None:
    with pytest.raises(SettingError) as error:
        settings.load(StateSettings, {"TANDEM_STATE": url})
    remedy = "a local folder; TANDEM_STORE names a URL for all that machines share"
    assert str(error.value) == f"TANDEM_STATE='{url}': expected {remedy}"


@pytest.mark.parametrize("name", ["TANDEM_STORE", "TANDEM_SCORES", "TANDEM_MESSAGES"])
@pytest.mark.parametrize("url", ["hdfs://me:se@cret@b/x", "s3://me:secret@b/x"])
def test_a_url_that_cannot_be_served_is_refused_without_its_password(name: str, url: str) -> None:
    with pytest.raises(SettingError, match=f"{name}='[a-z0-9]+://b/x': expected a folder or a URL") as error:
        settings.load(StateSettings, {name: url})
    assert "cret" not in str(error.value)


def test_what_machines_share_is_in_one_place_but_for_what_has_its_own(tmp_path: Path) -> None:
    state = settings.load(StateSettings, {"TANDEM_STORE": "s3://b/x/", "TANDEM_SCORES": str(tmp_path)})
    assert (state.releases_root, state.messages_dir, state.runs_dir) == (
        "s3://b/x/releases",
        "s3://b/x/messages",
        "s3://b/x/runs",
    )
    assert (state.scores_table, state.quarantine_table) == (tmp_path, "s3://b/x/quarantine")
    assert settings.load(StateSettings, {"TANDEM_STORE": f"file://{tmp_path}"}).runs_dir == tmp_path / "runs"
    assert settings.load(StateSettings, {"TANDEM_STATE": str(tmp_path)}).runs_dir == tmp_path / "runs"
    assert settings.load(StateSettings, {"TANDEM_MESSAGES": "gs://b/y"}).messages_dir == "gs://b/y"


def test_empty_means_default() -> None:
    assert settings.load(Sample, {"TANDEM_ROWS": ""}).rows == 64


def test_flags_win_over_the_environment() -> None:
    assert settings.load(Sample, {"TANDEM_ROWS": "8"}, rows=16, share=None) == Sample(rows=16)
    with pytest.raises(SettingError, match="TANDEM_ROWS=0"):
        settings.load(Sample, {"TANDEM_ROWS": "8"}, rows=0)


def test_relative_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = settings.load(StateSettings, {"TANDEM_STATE": "here", "TANDEM_RELEASES": "there"})
    assert (state.state, state.releases_root) == (tmp_path / "here", str(tmp_path / "there"))
    assert state.messages_dir == tmp_path / "here" / "messages"
    assert state.scores_table == tmp_path / "here" / "scores"


def test_a_group_has_defaults_and_names_of_its_own() -> None:
    environment = {"TANDEM_SAMPLE_NAME": "x", "TANDEM_OTHER_ROWS": "5", "TANDEM_ROWS": "7"}
    assert settings.load(Whole, environment) == Whole(Sample(rows=3, name="x"), Sample(rows=5))
    with pytest.raises(SettingError, match="TANDEM_OTHER_ROWS='0': expected a whole number above 0"):
        settings.load(Whole, {"TANDEM_OTHER_ROWS": "0"})
    assert {"TANDEM_SAMPLE_ROWS", "TANDEM_OTHER_SHARE", "TANDEM_NAME"} <= set(settings.names(Whole))
    assert "TANDEM_SAMPLE" not in set(settings.names(Whole))


def test_a_file_is_variables_of_the_same_names(tmp_path: Path) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text('name = "x"\n[sample]\nrows = 8\nshare = 0.25\neager = true\n[other]\nprecision = "bf16"\n')
    variables = settings.read_file(file, Whole)
    assert settings.load(Whole, variables) == Whole(
        Sample(8, 0.25, eager=True), Sample(precision=Precision.BF16), name="x"
    )
    file.write_text('state = "/there"\nlanes = ["a", "b"]\n')
    with pytest.raises(SettingError, match="TANDEM_LANES"):
        settings.read_file(file, StateSettings)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (b"rows = 8\nrowz = 9", "it sets TANDEM_ROWZ, and there is no such setting"),
        (b"[sample]\nrows = 8", "it sets TANDEM_SAMPLE_ROWS, and there is no such setting"),
        (b"rows: 8", "cannot be read: "),
        (b"\xff", "cannot be read: "),
        (None, "cannot be read: "),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(written: bytes | None, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "tandem.toml"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(SettingError) as error:
        settings.read_file(file, Sample)
    assert str(error.value).startswith(f"TANDEM_CONFIG={str(file)!r}: {problem}")
    assert "\n" not in str(error.value)


def test_every_setting_has_a_description() -> None:
    assert all(len(field.metadata["help"]) > 10 for field in fields(StateSettings))
