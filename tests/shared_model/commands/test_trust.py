"""keys, audit: which keys are made where, and which changes of operators are shown."""

from pathlib import Path

import pytest
import redis

from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.store import Release
from shared_model.trust import keyring
from tests.shared_model import small_release
from tests.shared_model.commands import Run


def names(folder: Path) -> set[str]:
    return {it.name for it in folder.iterdir() if not it.name.startswith(".")}


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ((), ["cluster.key", "operator.key", "operators.pub"]),
        (("--cluster", "--operator"), ["cluster.key", "operator.key", "operators.pub"]),
        (("--cluster",), ["cluster.key"]),
        (("--operator",), ["operator.key", "operators.pub"]),
    ],
)
def test_keys_makes_what_is_missing_and_names_the_operators(
    run: Run, place: Path, options: tuple[str, ...], made: list[str]
) -> None:
    status, printed, complaint = run("keys", *options)
    operator = ["operator"] if "operators.pub" in made else []
    lines = printed.splitlines()
    assert (status, complaint) == (0, "")
    assert lines[: len(made)] == [f"made {place / 'keys' / name}" for name in made]
    assert [line.split()[0] for line in lines[len(made) :]] == operator
    assert names(place / "keys") - {keyring.UNSETTLED} == set(made)
    # A second time nothing is made, and the same operators are named.
    assert run("keys", *options) == (0, "".join(f"{line}\n" for line in lines[len(made) :]), "")


def test_keys_signs_what_is_in_force(run: Run, one: Release, place: Path) -> None:
    assert run("promote", "--default", one.id)[0] == 0
    status, printed, _ = run("keys", "--operator")
    assert (status, printed.splitlines()[-1]) == (0, f"signed: release {one.id} is active (version 1)")
    assert not (place / "keys" / keyring.UNSETTLED).exists()
    assert run("promote", "--default", one.id)[0] == 0


def test_a_pointer_that_is_damaged_is_named_and_stays(run: Run, one: Release, place: Path) -> None:
    (place / "releases" / pointer.FILE).write_text("{")
    status, printed, _ = run("keys", "--operator")
    last = printed.splitlines()[-1]
    assert (status, last.startswith("the pointer stays unsigned: "), "is damaged" in last) == (0, True, True)


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        ("cluster.key", "short", "holds 5 bytes, and a key has 32 or more"),
        ("operators.pub", "c2hvcnQ=\n", "line 1: 'c2hvcnQ=' is no public key"),
        ("operator.key", "no key", "is no private key in PEM"),
    ],
)
def test_a_damaged_key_is_named_in_one_line_and_kept(
    run: Run, place: Path, name: str, contents: str, says: str
) -> None:
    (place / "keys").mkdir()
    (place / "keys" / name).write_text(contents)
    status, _, complaint = run("keys")
    assert (status, complaint.count("\n")) == (2, 1)
    assert complaint.startswith(f"shared_model keys: {place / 'keys' / name}: ")
    assert says in complaint
    assert (place / "keys" / name).read_text() == contents


def test_where_no_keys_can_be_made_the_setting_is_named(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").write_text("")
    monkeypatch.setenv("TANDEM_KEYS", str(place / "file" / "keys"))
    status, printed, complaint = run("keys")
    assert (status, printed) == (2, "")
    assert (
        complaint
        == f"shared_model keys: TANDEM_KEYS={place / 'file' / 'keys'}: no keys can be made there: Not a directory\n"
    )


def test_the_audit_of_nothing_is_nothing(run: Run) -> None:
    assert run("audit") == (0, "", "")


def test_the_audit_shows_changes_oldest_first_with_their_signers(
    run: Run, one: Release, two: Release, place: Path, redis_client: "redis.Redis"
) -> None:
    assert run("promote", "--default", one.id)[0] == 0
    operator = run("keys", "--operator")[1].splitlines()[2].split()[1]
    small_release.sign_verdict(two, place)
    assert run("promote", "--default", two.id)[0] == 0
    redis_client.xadd(keys.audit("routing"), {"record": "forged", "signer": "", "signature": ""})
    status, printed, complaint = run("audit")
    assert (status, complaint) == (0, "")
    first, kept, second, forged = printed.splitlines()
    # The former default model goes on under its name.
    assert f": nothing -> version 1 of model one: {one.id}  [signed by " in kept
    assert "  promote  by " in first
    assert first.endswith(f": nothing -> version 1: {one.id}  [unsigned]")
    assert second.endswith(f": version 1: {one.id} -> version 2: {two.id}  [signed by {operator}]")
    assert forged == "b'forged'  [unsigned]"
    assert run("audit", "--count", 2)[1].splitlines() == [second, forged]


def test_a_record_by_a_stranger_is_marked(run: Run, one: Release, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("keys", "--operator")
    small_release.sign_verdict(one, place)
    assert run("promote", "--default", one.id)[0] == 0
    keyring.make(place / "others", cluster=False, operator=True)
    monkeypatch.setenv("TANDEM_KEYS", str(place / "others"))
    assert run("audit")[1].rstrip().endswith(", a key that is not in operators.pub]")


def test_without_redis_the_audit_ends_with_status_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_REDIS_URL", "redis://127.0.0.1:1")
    status, printed, complaint = run("audit")
    assert (status, printed, complaint.count("\n")) == (3, "", 1)
    assert complaint.startswith("shared_model audit: Redis did not answer: ")


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_is_a_positive_number(run: Run, count: int) -> None:
    says = f"shared_model audit: --count: is {count}; expected 1 or more\n"
    assert run("audit", f"--count={count}") == (2, "", says)
