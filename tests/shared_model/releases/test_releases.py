"""A release proves itself: what is opened is what was built, and no name leads out of its folder."""

import hashlib
import json
import os
import string
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared_model.encoding import InputSpec
from shared_model.errors import ReleaseError, UnknownRelease
from shared_model.evaluation import judged
from shared_model.heads import HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases import manifest
from shared_model.releases.manifest import Manifest
from shared_model.releases.store import Release, Store
from shared_model.types import Device, Precision
from tests.shared_model.full_disk import largest_file
from tests.shared_model.small_release import FILES, seal


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def small(store: Store) -> Release:
    return seal(store)


def test_a_release_with_one_unnamed_head_has_the_manifest_and_the_id_that_it_had_before_there_were_heads(
    small: Release,
) -> None:
    assert small.id == "small-3cc1610b3386"
    assert not {"head", "heads", "further"} & json.loads(small.manifest.to_json()).keys()


def test_default_release_is_as_built(release: Release) -> None:
    release.verify()
    assert {(v.precision, v.device) for v in release.manifest.variants} == {
        (Precision.FP32, Device.CPU),
        (Precision.BF16, Device.CPU),
        (Precision.INT8, Device.CPU),
        (Precision.FP16, Device.CUDA),
    }


def test_what_the_gate_wrote_of_the_default_release_is_read(release: Release) -> None:
    found = judged.read(release)
    assert found
    assert (found.passed, found.failures) == (True, [])
    assert {name: measured.compiled for name, measured in found.variants.items()}["int8/cpu"] == "int8"
    assert all(measured.latency and measured.agreement for measured in found.variants.values())


def test_same_bytes_same_id(tmp_path: Path) -> None:
    assert seal(Store(tmp_path / "one")).id == seal(Store(tmp_path / "two"), dict(reversed(FILES.items()))).id


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"parent": "2" * 64},
        {"output": OutputSpec(OutputKind.SINGLE_LABEL, ("no", "yes"), 2)},
        {"output": OutputSpec(OutputKind.MULTI_LABEL, ("yes", "no"), 2)},
        {"output": OutputSpec(OutputKind.SINGLE_LABEL, ("yes", "no"), 2, temperature=0.75)},
        {"output": OutputSpec(OutputKind.SINGLE_LABEL, ("yes", "no"), 2, abstain_below=0.5)},
        {"output": OutputSpec(OutputKind.SINGLE_LABEL, ("yes", "no"), 2, abstain_on=("no",))},
        {"reads": InputSpec(9)},
        {"reads": InputSpec(8, pairs=True)},
        {"reads": InputSpec(8, pairs=True, types=True)},
        {"calibration": "3" * 64},
        {"quantisation": "with care"},
        {"variants": ()},
        {"head": "intent"},
        {"further": (HeadSpec("mood", OutputSpec(OutputKind.MULTI_LABEL, ("glad",), 1)),)},
    ],
)
def test_other_facts_other_id(store: Store, small: Release, change: dict[str, Any]) -> None:
    other = seal(store, **change)
    assert other.id.rpartition("-")[2] != small.id.rpartition("-")[2]
    assert store.open(other.id).manifest == other.manifest


@pytest.mark.parametrize("path", FILES)
def test_other_bytes_other_id(store: Store, small: Release, path: str) -> None:
    assert seal(store, {**FILES, path: FILES[path] + b" "}).id != small.id


def test_a_release_without_calibration_is_the_one_of_versions_that_had_none(small: Release) -> None:
    """Their id, and no field that they would not know."""
    assert small.id == "small-3cc1610b3386"
    assert json.loads(small.manifest.to_json())["output"] == {
        "kind": "single_label",
        "names": ["yes", "no"],
        "width": 2,
    }


def test_unlisted_file_is_not_read(small: Release, tmp_path: Path) -> None:
    (tmp_path / "small" / small.id / "extra.json").write_bytes(b"{}")
    with pytest.raises(ReleaseError, match=r"holds no extra\.json"):
        small.read("extra.json")


def test_notes_lie_beside_the_files_and_never_in_their_place(small: Release) -> None:
    assert small.read_note("report.json") is None
    small.write_note("report.json", b"{}")
    assert small.read_note("report.json") == b"{}"
    for name in ("config.json", manifest.FILE, "int8/model.bin", "../note.json", "/note.json", "", "."):
        for ask in (lambda name=name: small.write_note(name, b"{}"), lambda name=name: small.read_note(name)):
            with pytest.raises(ReleaseError, match="cannot be the name of a note"):
                ask()
    small.verify()


def test_a_release_under_another_id_is_refused(store: Store, small: Release, tmp_path: Path) -> None:
    other = f"small-{hashlib.sha256(b'other').hexdigest()[:12]}"
    (tmp_path / "small" / small.id).rename(tmp_path / "small" / other)
    with pytest.raises(ReleaseError, match=r"manifest\.json does not match its id"):
        store.open(other)


def forge(root: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Write a manifest of any contents whose id is right all the same; returns the id."""
    document = json.loads(seal(Store(root)).manifest.to_json())
    del document["id"]
    change(document)
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    forged = f"small-{hashlib.sha256(body).hexdigest()[:12]}"
    (root / "small" / forged).mkdir(exist_ok=True)
    canonical = json.dumps({"id": forged, **json.loads(body)}, indent=1) + "\n"
    (root / "small" / forged / manifest.FILE).write_text(canonical)
    return forged


def test_forged_manifest_without_a_change_opens(tmp_path: Path) -> None:
    assert Store(tmp_path).open(forge(tmp_path, lambda document: None)).id


_TRICKS = ["../secret.txt", "/etc/passwd.txt", "int8/../config.json", "int8//model.bin", "./config.json", "a\0.json",
           "．．/config.json", "ｃonfig.json", "cоnfig.json", "cónfig.json", "\u202ejson.gifnoc", "CONFIG.JSON",
           "config.json ", "config.json\n", "con\u200bfig.json", "ﬁle.json", "a/b/c.json", "no_suffix", ".hidden",
           "..", ".", "", manifest.FILE]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        *(lambda document, path=path: document["files"].update({path: "0" * 64}) for path in _TRICKS),
        lambda document: document["variants"][0]["files"].update({"model.bin": "../../model.bin"}),
        lambda document: document["variants"][0]["files"].update({"model.bin": "config.bin"}),
        lambda document: document["variants"][0]["files"].update({"model.bin": ["config.json"]}),
        lambda document: document["variants"][0].update({"files": ["int8/model.bin"]}),
        lambda document: document["variants"][0].update({"precision": "int4"}),
        lambda document: document.update({"files": ["config.json"]}),
        lambda document: document.update({"format": 3}),
        lambda document: document.update({"surprise": "1"}),
        lambda document: document.update({"parent": 7}),
        lambda document: document["reads"].update({"max_tokens": "8"}),
        lambda document: document["reads"].update({"max_tokens": 0}),
        lambda document: document["reads"].update({"pairs": "no"}),
        lambda document: document["output"].update({"width": 3}),
        lambda document: document["output"].update({"width": float("inf")}),
        lambda document: document["output"].update({"names": ["yes", 7]}),
        lambda document: document["output"].update({"kind": "guess"}),
        lambda document: document["output"].update({"temperature": "2"}),
        lambda document: document["output"].update({"temperature": 1.0}),
        lambda document: document["output"].update({"temperature": -1.0}),
        lambda document: document["output"].update({"temperature": None}),
        lambda document: document["output"].update({"abstain_below": True}),
        lambda document: document["output"].update({"abstain_below": 1.5}),
        lambda document: document["output"].update({"abstain_on": []}),
        lambda document: document["output"].update({"abstain_on": ["maybe"]}),
    ],
)
def test_forged_manifest_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(ReleaseError) as raised:
        Store(tmp_path).open(forge(tmp_path, change))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("contents", [b"[" * 100_000, b"9" * 5000, b"\xff\xfe", b"null", b"7", b'"text"', b"[]", b"{}"])
def test_a_manifest_of_nonsense_is_refused(store: Store, small: Release, tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "small" / small.id / manifest.FILE).write_bytes(contents)
    with pytest.raises(ReleaseError, match=r"manifest\.json is damaged"):
        store.open(small.id)


@pytest.mark.parametrize(
    "release_id",
    ["", ".", "..", "small", "../small-0123456789ab", "/etc-0123456789ab", "a/b-0123456789ab", "Small-0123456789ab",
     "small-0123456789ag", "small-0123456789ab\n", "small-0123456789abc", "-small-0123456789ab",
     "small\0-0123456789ab", "．．-0123456789ab", "smаll-0123456789ab", "ſmall-0123456789ab",
     "small-０123456789ab", "small-0123456789ab\u0301", "\u202esmall-0123456789ab", "small-0123456789AB"],
)  # fmt: skip
def test_an_id_cannot_leave_the_root(store: Store, release_id: str) -> None:
    with pytest.raises(ReleaseError, match="is not a release id"):
        store.open(release_id)


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "/a", "A", "a" * 49, "-a", "a-", "a\n", "a\0", "．．", "ａ", "а", "a\u0301", "ı", "ß"]
)
def test_a_name_cannot_leave_the_root(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="release name"):
        seal(store, name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", _TRICKS)
def test_a_file_cannot_leave_the_release(tmp_path: Path, path: str) -> None:
    with pytest.raises(ReleaseError, match="not a file name inside a release"):
        seal(Store(tmp_path / "root"), {**FILES, path: b""})
    assert list(tmp_path.iterdir()) == []


#: Characters of names, and similar ones.
_LOOKALIKES = st.text(st.one_of(st.sampled_from("az09-./\\_~%A．∕а\0\n\u202e\u0301"), st.characters()), max_size=60)
_PLAIN = set(string.ascii_lowercase + string.digits + "-")


def refusal(accepts: Callable[[str], object], text: str) -> str | None:
    try:
        accepts(text)
    except ReleaseError as error:
        return str(error)
    return None


@given(_LOOKALIKES)
@example("a-z")
@example("small-0123456789ab")
def test_what_passes_as_a_name_is_one_plain_folder(text: str) -> None:
    for accepts in (manifest.check_name, manifest.name_of):
        line = refusal(accepts, text)
        if line is None:
            assert set(text) <= _PLAIN
            assert text.casefold() == text
            assert Path("/folder", text).parent == Path("/folder")
        else:
            assert line.isprintable()


def test_unknown_release_says_what_to_do(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownRelease, match=f"is not in {tmp_path}; build it or copy it there"):
        store.open("small-0123456789ab")


def test_a_seal_that_fails_leaves_nothing(store: Store, tmp_path: Path) -> None:
    large = {**FILES, "weights.safetensors": bytes(16_384)}
    with largest_file(8192), pytest.raises(OSError, match="File too large"):
        seal(store, large)
    assert list((tmp_path / "small").iterdir()) == []
    assert store.ids() == []
    seal(store, large).verify()


def test_many_may_seal_the_same_release_at_once(store: Store, tmp_path: Path) -> None:
    together = Barrier(8)

    def build(_: int) -> Release:
        together.wait()
        return seal(store, {**FILES, "weights.safetensors": bytes(1 << 20)})

    with ThreadPoolExecutor(8) as pool:
        sealed = list(pool.map(build, range(8)))
    assert {r.id for r in sealed} == set(store.ids())
    sealed[0].verify()
    assert [path.name for path in (tmp_path / "small").iterdir()] == [sealed[0].id]


def test_releases_are_listed_oldest_first(store: Store, tmp_path: Path) -> None:
    sealed = [seal(store, reads=InputSpec(tokens)) for tokens in (8, 16, 24)]
    for age, release in enumerate(reversed(sealed)):
        os.utime(tmp_path / "small" / release.id / manifest.FILE, (1_000 - age, 1_000 - age))
    (tmp_path / "small" / f".building-{sealed[0].id}").mkdir()
    assert store.ids() == [r.id for r in sealed]


def test_manifest_survives_writing_and_reading(small: Release) -> None:
    read: Manifest = manifest.parse(small.manifest.to_json(), small.id)
    assert read == small.manifest
