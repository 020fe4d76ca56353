"""A release is named by its id, its name, the beginning of either, or what the pointer makes of it; and `rm`."""

from pathlib import Path

import pytest

from shared_model.releases.store import Release, Store
from tests.shared_model import small_release
from tests.shared_model.commands import Run, listed


@pytest.fixture
def other_two(two: Release, store: Store) -> Release:
    """Another release of the name `two`."""
    other = small_release.seal(store, name="two", quantisation="with care")
    small_release.judge(other)
    return other


def test_a_name_that_one_release_has_is_enough(run: Run, one: Release, two: Release) -> None:
    assert run("promote", "--default", "one")[0] == 0
    assert f"release {two.id} answers 50.00%" in run("canary", "--default", "two", "--weight", "0.5")[1]
    assert run("verify", "two")[1].startswith(f"release {two.id}: ")


def test_the_beginning_of_an_id_is_enough(run: Run, two: Release, other_two: Release) -> None:
    for release in (two, other_two):
        assert run("show", release.id[:8], "--json")[1] == release.manifest.to_json().decode()


def test_several_releases_of_a_name_are_listed(run: Run, two: Release, other_two: Release, store: Store) -> None:
    first, second = store.ids()[-2:]
    assert {first, second} == {two.id, other_two.id}
    for given in ("two", "tw"):
        says = f"shared_model promote: '{given}' may be {first} or {second}; write more of the id\n"
        assert run("promote", given) == (2, "", says)


def test_a_whole_name_goes_before_the_beginning_of_another(run: Run, one: Release, store: Store) -> None:
    small_release.passed(store, "one-more")
    assert run("show", "one", "--json")[1] == one.manifest.to_json().decode()
    assert run("show", "one-m", "--json")[0] == 0


def test_what_the_pointer_names_needs_no_id(run: Run, one: Release, two: Release, store: Store) -> None:
    run("promote", "--default", "one")
    run("promote", "--default", "two")
    three = small_release.passed(store, "three")
    run("canary", "--default", "three", "--weight", "0.5")
    for given, release in (("@active", two), ("@previous", one), ("@canary", three)):
        assert run("show", given, "--json")[1] == release.manifest.to_json().decode()
    assert run("show", "--json")[1] == two.manifest.to_json().decode()
    assert run("diff", "@previous", "@active")[1].startswith("name          one → two\n")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("@previous", "@previous: there is no previous release"),
        ("@canary", "@canary: there is no canary release"),
        ("@next", "'@next' is not one of @active, @previous, @canary"),
        ("three", "'three' is not a release id, nor the name or beginning of one; `list` shows those here"),
        ("", "'' is not a release id, nor the name or beginning of one; `list` shows those here"),
        ("one-0123456789ab", "release one-0123456789ab is not in "),
    ],
)
@pytest.mark.parametrize("command", [("verify",), ("promote",), ("diff", "one"), ("gate",), ("gate", "--release")])
def test_what_names_no_release_is_one_line(
    run: Run, one: Release, command: tuple[str, ...], given: str, says: str
) -> None:
    run("promote", "--default", "one")
    status, _, complaint = run(*command, given)
    assert (status, complaint.count("\n")) == (2, 1)
    assert complaint.startswith(f"shared_model {command[0]}: {says}")


def test_rm_removes_a_release_and_says_what_that_frees(run: Run, one: Release, two: Release) -> None:
    size = sum(path.stat().st_size for path in Path(one.place).iterdir() if path.is_file())
    assert size > 0
    status, printed, _ = run("rm", "one")
    assert (status, printed) == (0, f"release {one.id} is removed; 0.0 MB are free\n")
    assert not Path(one.place).exists()
    assert listed(run("list")[1]) == [f"{two.id} passed"]
    assert run("rm", "one")[0] == 2


def test_rm_keeps_what_the_pointer_names(run: Run, one: Release, two: Release, store: Store) -> None:
    run("promote", "--default", "one")
    run("promote", "--default", "two")
    small_release.passed(store, "three")
    run("canary", "--default", "three", "--weight", "0.5")
    for given, role in (("one", "active one of model one"), ("two", "active one"), ("three", "canary one")):
        status, _, complaint = run("rm", given)
        assert (status, f"stays: it is the {role}; " in complaint) == (2, True)
    assert len(store.ids()) == 3
    run("rollback")
    assert run("rm", "three")[0] == 0
