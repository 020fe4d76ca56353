"""A thousand damages to a release, by chance or by intent: each is refused in one line that names the file."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shared_model.errors import ReleaseError
from shared_model.releases import manifest
from shared_model.releases.store import Release, Store
from shared_model.types import Device, Precision
from tests.shared_model import small_release

PATHS = [*small_release.FILES, manifest.FILE]
#: Damages something of the release in a folder and returns the paths of which one must be named.
Damage = Callable[[Path, random.Random], list[str]]


def flip_bits(folder: Path, chance: random.Random) -> list[str]:
    path = chance.choice(PATHS)
    contents = bytearray((folder / path).read_bytes())
    for position in chance.sample(range(len(contents) * 8), chance.choice([1, 1, 2, 7])):
        contents[position // 8] ^= 1 << position % 8
    (folder / path).write_bytes(contents)
    return [path]


def truncate(folder: Path, chance: random.Random) -> list[str]:
    path = chance.choice(PATHS)
    contents = (folder / path).read_bytes()
    (folder / path).write_bytes(contents[: chance.randrange(1, len(contents))])
    return [path]


def empty(folder: Path, chance: random.Random) -> list[str]:
    path = chance.choice(PATHS)
    (folder / path).write_bytes(b"")
    return [path]


def append(folder: Path, chance: random.Random) -> list[str]:
    path = chance.choice(PATHS)
    with open(folder / path, "ab") as file:
        file.write(chance.choice([b"\n", b" ", b"\0", chance.randbytes(100)]))
    return [path]


def remove(folder: Path, chance: random.Random) -> list[str]:
    path = chance.choice(list(small_release.FILES))
    (folder / path).unlink()
    return [path]


def swap_variants(folder: Path, chance: random.Random) -> list[str]:
    name = chance.choice(["model.bin", "model.xml"])
    one, other = folder / "int8" / name, folder / "openvino" / name
    contents = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(contents)
    return [f"int8/{name}", f"openvino/{name}"]


def swap_any(folder: Path, chance: random.Random) -> list[str]:
    one, other = chance.sample(list(small_release.FILES), 2)
    contents = (folder / one).read_bytes()
    (folder / one).write_bytes((folder / other).read_bytes())
    (folder / other).write_bytes(contents)
    return [one, other]


def link_file(folder: Path, chance: random.Random) -> list[str]:
    """A link even to the right bytes: they could be exchanged from outside."""
    path = chance.choice(PATHS)
    kept = (folder / path).rename(folder.parents[2] / "kept")
    (folder / path).symlink_to(kept)
    return [path]


def link_folder(folder: Path, chance: random.Random) -> list[str]:
    name = chance.choice(["int8", "openvino"])
    (folder / name).symlink_to((folder / name).rename(folder.parents[2] / "kept"))
    return [f"{name}/model"]


def link_release(folder: Path, chance: random.Random) -> list[str]:
    linked = chance.choice([folder, folder.parent])
    linked.symlink_to(linked.rename(folder.parents[2] / "kept"))
    return [manifest.FILE]


def edit_manifest(folder: Path, chance: random.Random) -> list[str]:
    path = folder / manifest.FILE
    text = path.read_text()
    other, mine = chance.sample(sorted(small_release.FILES), 2)
    hashes = {name: manifest.sha256(small_release.FILES[name]) for name in (other, mine)}
    edits = [
        (hashes[mine], hashes[other]),
        ('"max_tokens": 8', '"max_tokens": 16'),
        ('"yes"', '"si"'),
        ('"int8"', '"bf16"'),
        ("\n ", "\n  "),
        ('"id"', '"format": 2,\n "id"'),
        ("{\n", '{\n "surprise": "1",\n'),
    ]
    old, new = chance.choice(edits)
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return [manifest.FILE]


DAMAGES = (flip_bits, truncate, empty, append, remove, swap_variants, swap_any, link_file, link_folder, link_release,
           edit_manifest)  # fmt: skip


@pytest.fixture
def pristine(tmp_path: Path) -> Release:
    return small_release.seal(Store(tmp_path / "pristine"))


def copied(pristine: Release, place: Path) -> Path:
    """The release's root below `place`, as it was built; returns the release's folder there."""
    folder = place / "root" / pristine.manifest.name / pristine.id
    if not place.exists() or (place / "kept").exists():
        # A link was made there: nothing may be written through it.
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(pristine.files.root, place / "root")
    for path, built in {**small_release.FILES, manifest.FILE: pristine.manifest.to_json()}.items():
        if not (folder / path).exists() or (folder / path).read_bytes() != built:
            (folder / path).write_bytes(built)
    return folder


def test_an_undamaged_copy_is_as_built(pristine: Release, tmp_path: Path) -> None:
    folder = copied(pristine, tmp_path / "copy")
    opened = Store(tmp_path / "copy" / "root").open(pristine.id)
    opened.verify()
    flip_bits(folder, random.Random(1))
    copied(pristine, tmp_path / "copy")
    opened.verify()


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(ReleaseError) as raised:
        ask()
    return str(raised.value)


@pytest.mark.heavy
def test_a_thousand_damages_are_refused_by_name(pristine: Release, tmp_path: Path) -> None:
    """Half of them before the release is opened, half between opening it and reading its files."""
    chance = random.Random(20261121)
    seen: dict[str, int] = {}
    for number in range(1000):
        folder = copied(pristine, tmp_path / "copy")
        damage = DAMAGES[number % len(DAMAGES)]
        store = Store(tmp_path / "copy" / "root")
        opened = store.open(pristine.id)
        named = damage(folder, chance)
        after = named != [manifest.FILE] and chance.random() < 0.5
        line = refusal(opened.verify) if after else refusal(lambda store=store: store.open(pristine.id).verify())
        assert any(path in line for path in named), (damage.__name__, named, line)
        assert "\n" not in line
        seen[damage.__name__] = seen.get(damage.__name__, 0) + 1
    assert min(seen.values()) >= 90


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d not in (link_release, edit_manifest)])
def test_no_engine_or_encoder_is_made_of_damaged_files(pristine: Release, tmp_path: Path, damage: Damage) -> None:
    """Each file is damaged in turn, after opening; whatever is made of it is refused before any of it is parsed."""
    chance = random.Random(7)
    made_of = {
        "tokenizer.json": lambda release: release.encoder(),
        "int8/model": lambda release: release.engine(Precision.INT8, Device.CPU, 1),
        "openvino/model": lambda release: release.engine(Precision.BF16, Device.CPU, 1),
        "weights": lambda release: release.engine(Precision.FP16, Device.CUDA, 1),
    }
    met = 0
    for _ in range(12):
        folder = copied(pristine, tmp_path / "copy")
        opened = Store(tmp_path / "copy" / "root").open(pristine.id)
        named = damage(folder, chance)
        for path, make in made_of.items():
            if any(name.startswith(path) for name in named):
                assert any(name in refusal(lambda make=make, opened=opened: make(opened)) for name in named)
                met += 1
    assert met
