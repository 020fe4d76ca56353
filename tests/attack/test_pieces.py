"""A run in pieces: the attacks of earlier pieces are kept as they were."""

from pathlib import Path

import pytest

from tests.attack import __main__ as attack
from tests.attack.disturbers import DISTURBERS
from tests.attack.oracles import Seen
from tests.benchmarks import harness
from tests.benchmarks.harness import CannotMeasure

FIRST, *_, LAST = DISTURBERS
SEEN = Seen(1200, 1.0, 10.0, 5.0, 0.0, 20.0, 100, 1000.0, 1, 0, (("INTERNAL: /m: x", 3),))


def run(out: Path, name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    def row(name: str, seconds: float, inputs: int) -> attack.Row:
        return attack.Row(name, seconds, inputs, SEEN, SEEN, ("broken",) if name == LAST else ())

    monkeypatch.setattr(attack, "_row", row)
    monkeypatch.setattr(harness, "place", lambda packages: harness.Place({}, {}, "abc"))
    return attack.main(["--only", name, "--out", str(out), *options])


def test_a_piece_keeps_the_attacks_of_the_others_and_judges_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attack.json"
    assert run(out, LAST, monkeypatch, "--keep", "--seconds", "5") == 1
    assert run(out, FIRST, monkeypatch, "--keep") == 1
    kept = list(attack._read(out))
    assert [(it.attack, it.seconds, it.seen) for it in kept] == [(FIRST, attack.SECONDS, SEEN), (LAST, 5.0, SEEN)]
    assert [it.broken for it in kept] == [(), ("broken",)]
    assert capsys.readouterr().out.count(LAST) > 1
    assert run(out, FIRST, monkeypatch) == 0


def test_a_file_without_attacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attack.json"
    out.write_text("{}")
    assert run(out, FIRST, monkeypatch, "--keep") == 2
    assert str(out) in capsys.readouterr().err
    with pytest.raises(CannotMeasure, match="leave out --keep"):
        list(attack._read(out))
