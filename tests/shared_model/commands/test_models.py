"""Commands where a deployment has several models: each is promoted, tried and rolled back by itself."""

from shared_model.releases import pointer, pointers
from shared_model.releases.pointer import Pointer
from shared_model.releases.pointers import Pointers
from shared_model.releases.store import Release, Store
from tests.shared_model import small_release
from tests.shared_model.commands import Run, listed


def test_a_release_of_another_name_is_served_beside_the_default_model(
    run: Run, one: Release, two: Release, store: Store
) -> None:
    run("promote", "one")
    status, printed, _ = run("promote", "two")
    assert (status, printed.partition("; unproven")[0]) == (
        0,
        f"release {two.id} is active (version 1); served as model two; default stays one; --default moves it",
    )
    assert pointers.read(store, None) == Pointers(Pointer(1, one.id), {"two": Pointer(1, two.id)})
    again = small_release.seal(store, name="two", quantisation="with care")
    small_release.judge(again)
    printed = run("canary", again.id, "--weight", "0.25")[1]
    assert f"{two.id} the others; model two, default stays one" in printed
    assert sorted(listed(run("list")[1])) == sorted([
        f"{one.id} passed active", f"{two.id} passed active of two", f"{again.id} passed canary 25.00% of two",
    ])  # fmt: skip
    assert run("show", "@canary:two")[1].startswith(f"release       {again.id}  canary 25.00% of two\n")
    assert run("show", "@active")[1].startswith(f"release       {one.id}  active\n")
    assert run("rollback", "--model", "two")[1].startswith(f"release {two.id} is active (version 3); the canary ")
    assert pointer.read(store, None) == Pointer(1, one.id)


def test_the_default_moves_if_that_is_asked_for(run: Run, one: Release, two: Release, store: Store) -> None:
    run("promote", "one")
    printed = run("promote", "two", "--default")[1]
    assert printed.startswith(f"release {two.id} is active (version 2); it replaced {one.id}; unproven")
    assert pointers.read(store, None) == Pointers(Pointer(2, two.id, one.id), {"one": Pointer(1, one.id)})


def test_what_another_model_needs_is_not_removed(run: Run, one: Release, two: Release, store: Store) -> None:
    run("promote", "one")
    run("promote", "two")
    status, _, complaint = run("rm", "two")
    assert (status, complaint) == (
        2,
        f"shared_model rm: release {two.id} stays: it is the active one of model two; promote another first\n",
    )


def test_a_model_that_was_never_promoted_has_nothing_to_try_or_undo(run: Run, one: Release, two: Release) -> None:
    run("promote", "one")
    assert "no release of model two is active" in run("canary", "two", "--weight", "0.5")[2]
    assert "model two has no active release" in run("rollback", "--model", "two")[2]
    assert "model two has no active release" in run("show", "@active:two")[2]
