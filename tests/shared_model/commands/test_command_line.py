"""`python -m shared_model` for people: an answer is a line or a short table; what is wrong is one line, and the exit
status says where: 1 in a release that its gate refuses, 2 in the call, 3 in Redis."""

import json
import re
import stat
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from shared_model.evaluation import report
from shared_model.releases.store import Release, Store
from tests.shared_model import small_release
from tests.shared_model.commands import Run, listed
from tests.shared_model.small_release import passed


def test_list_marks_what_answers_and_what_may(run: Run, one: Release, two: Release, store: Store) -> None:
    run("promote", "--default", one.id)
    run("promote", "--default", two.id)
    three, four = passed(store, "three"), small_release.seal(store, name="four")
    run("canary", "--default", three.id, "--weight", "0.25")
    small_release.judge(four, failures=("is slow",))
    five = small_release.seal(store, name="five")
    six = small_release.seal(store, name="six")
    (Path(six.place) / "manifest.json").write_text("{}")
    small_release.judge(one, accuracy=0.9321)
    status, printed, _ = run("list")
    assert status == 0
    assert sorted(listed(printed)) == sorted([
        f"{one.id} passed accuracy 93.21% active of one, previous",
        f"{two.id} passed active",
        f"{three.id} passed canary 25.00%",
        f"{four.id} REFUSED",
        f"{five.id} not judged",
        f"{six.id} release {six.id}: manifest.json is damaged; copy the release again",
    ])  # fmt: skip
    size = sum(path.stat().st_size for path in Path(one.place).rglob("*") if path.is_file())
    (of_one,) = [found for found in json.loads(run("list", "--json")[1]) if found["release"] == one.id]
    assert datetime.fromisoformat(of_one.pop("built")) == store.built(one.id)
    assert of_one == {
        "release": one.id,
        "name": "one",
        "bytes": size,
        "gate": "passed",
        "accuracy": 0.9321,
        "role": "active",
        "model": "one",
        "weight": None,
        "temperature": 1.0,
        "ece": None,
        "heads": {},
    }


def test_list_of_nothing_is_nothing(run: Run) -> None:
    assert run("list") == (0, "", "")
    assert run("list", "--json") == (0, "[]\n", "")


def test_show_says_what_a_release_is(run: Run, one: Release) -> None:
    run("promote", "--default", one.id)
    small_release.judge(one, ("is slow",), agreement=0.9931, clear_agreement=1.0, accuracy=0.93)
    status, printed, _ = run("show")
    assert status == 0
    assert [re.sub(" +", " ", line) for line in printed.splitlines()] == [
        f"release {one.id} active",
        f"place {one.place}",
        f"parent sha256 {'0' * 64}",
        "output single_label, 2: yes, no",
        "reads texts of at most 8 tokens",
        f"quantisation by hand; calibration sha256 {'1' * 64}",
        "gate REFUSED: int8/cpu is slow; unproven: fp16/cuda",
        "signature none",
        "fp32/cpu 0.0 MB, compiled as fp32, agreement 99.31% (100.00% where fp32 is sure), accuracy 93.00%",
        "bf16/cpu 0.0 MB, compiled as bf16, agreement 99.31% (100.00% where fp32 is sure), accuracy 93.00%",
        "int8/cpu 0.0 MB, compiled as int8, agreement 99.31% (100.00% where fp32 is sure), accuracy 93.00%",
        "fp16/cuda 0.0 MB, not measured here",
    ]


def test_show_goes_on_where_the_report_is_damaged(run: Run, one: Release) -> None:
    one.write_note(report.JSON, b"{")
    status, printed, _ = run("show", one.id)
    assert (status, printed.count("\n")) == (0, 12)
    assert f"gate          release {one.id}: report.json is damaged; judge it again\n" in printed


def test_show_json_is_the_manifest(run: Run, one: Release) -> None:
    assert run("show", one.id, "--json") == (0, one.manifest.to_json().decode(), "")


def test_verify_counts_the_files(run: Run, one: Release) -> None:
    assert run("verify", one.id) == (0, f"release {one.id}: 7 files, every one as built\n", "")


def test_a_damaged_release_is_named(run: Run, one: Release) -> None:
    (Path(one.place) / "config.json").write_text("{}")
    says = f"release {one.id}: config.json does not match its sha256; copy the release again\n"
    assert run("verify", one.id) == (2, "", f"shared_model verify: {says}")


def test_diff_says_what_differs(run: Run, one: Release, store: Store) -> None:
    files = {**small_release.FILES, "int8/model.bin": b"longer " * 1000, "extra.json": b"{}"}
    del files["weights.safetensors"]
    two = small_release.seal(
        store,
        files,
        name="two",
        parent="2" * 64,
        quantisation="with care",
        variants=small_release.VARIANTS[:3],
        output=type(one.output)(one.output.kind, ("no", "maybe", "yes"), 3),
        reads=type(one.manifest.reads)(16),
    )
    timed = {"rows": 1, "tokens": 32, "threads": 1}
    small_release.judge(one, agreement=0.992, latency=[{**timed, "milliseconds": 2.5}])
    small_release.judge(two, ("is slow",), agreement=0.993, latency=[{**timed, "milliseconds": 20.0}])
    status, printed, _ = run("diff", one.id, two.id)
    assert status == 0
    found = [re.sub(" +", " ", line) for line in printed.splitlines()]
    measured = "agreement 99.20% → 99.30%"
    assert found == [
        "name one → two",
        f"parent sha256 {'0' * 12}… → sha256 {'2' * 12}…",
        "output single_label/2 → single_label/3",
        "labels 1 added: maybe",
        "labels in another order",
        "reads texts of at most 8 tokens → texts of at most 16 tokens",
        "quantisation by hand → with care",
        "variants fp16/cuda is gone",
        "files extra.json: none → sha256 44136fa355b3…, 2 bytes",
        f"files int8/model.bin: sha256 {one.manifest.files['int8/model.bin'][:12]}…, 2,048 bytes → "
        f"sha256 {two.manifest.files['int8/model.bin'][:12]}…, 7,000 bytes",
        f"files weights.safetensors: sha256 {one.manifest.files['weights.safetensors'][:12]}…, 4,096 bytes → none",
        "gate passed → refused",
        *(f"{variant} {measured}" for variant in ("fp32/cpu", "bf16/cpu", "int8/cpu")),
        "",
        "latency rows×tokens old ms new ms",
        *(f"{variant} 1×32 on 1 thread 2.50 20.00" for variant in ("fp32/cpu", "bf16/cpu", "int8/cpu")),
        "Each gate measured when it ran: latencies of two occasions also show how busy the host was.",
    ]
    assert max(map(len, printed.splitlines())) < 130


def test_calibration_is_listed_shown_and_compared(run: Run, one: Release, store: Store) -> None:
    output = replace(one.output, temperature=0.795, abstain_below=0.6)
    two = small_release.seal(store, name="two", output=output)
    for release, error in ((one, 0.0433), (two, 0.0105)):
        small_release.judge(release, accuracy=0.9321)
        document = json.loads(release.read_note(report.JSON) or b"")
        document["quality"] = {"calibration": {"ece_after": error}}
        release.write_note(report.JSON, json.dumps(document).encode())
    assert f"{two.id} passed accuracy 93.21%, ECE 0.0105" in listed(run("list")[1])
    (of_two,) = [found for found in json.loads(run("list", "--json")[1]) if found["release"] == two.id]
    assert (of_two["temperature"], of_two["ece"]) == (0.795, 0.0105)
    shown = run("show", two.id)[1]
    assert "single_label, 2: yes, no; temperature 0.795; abstains below 0.6\n" in shown
    assert "passed; unproven: fp16/cuda; expected calibration error 0.0105\n" in shown
    differences = [re.sub(" +", " ", line) for line in run("diff", one.id, two.id)[1].splitlines()]
    assert differences == [
        "name one → two",
        "temperature 1 → 0.795",
        "abstaining never → below 0.6",
        "ece 0.0433 → 0.0105",
    ]


def test_diff_names_a_few_labels_unless_all_are_asked_for(run: Run, one: Release, store: Store) -> None:
    names = tuple(f"intent{number:02}" for number in range(77))
    two = small_release.seal(store, name="two", output=type(one.output)(one.output.kind, names, 77))
    assert (
        "labels        77 added: intent00, intent01, intent02, … (--all names them)\n" in run("diff", "one", "two")[1]
    )
    assert f"labels        77 removed: {', '.join(names)}\n" in run("diff", "two", "one", "--all")[1]
    assert two.labels == names


def test_diff_of_a_release_with_itself_is_nothing(run: Run, one: Release) -> None:
    assert run("diff", one.id, one.id) == (0, "nothing differs\n", "")


def test_a_key_signs_and_what_is_trusted_opens(
    run: Run, one: Release, two: Release, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, public = place / "release.key", place / "release.key.pub"
    status, printed, _ = run("keygen", "--out", key)
    assert (status, printed.startswith(f"private key in {key}: keep it offline; add {public}")) == (0, True)
    assert (stat.S_IMODE(key.stat().st_mode), stat.S_IMODE(public.stat().st_mode)) == (0o600, 0o644)
    monkeypatch.setenv("TANDEM_TRUSTED_KEYS", str(public))
    for command in (("verify",), ("promote",), ("canary", "--weight", "0.5")):
        status, _, complaint = run(*command, one.id)
        assert (status, complaint.startswith(f"shared_model {command[0]}: release {one.id} is unsigned")) == (2, True)
    status, printed, _ = run("sign", "--key", key, one.id)
    first, verdict = printed.splitlines()
    signer = first.removeprefix(f"release {one.id} is signed by ")
    assert verdict == "the verdict of its gate, too: passed"
    assert (status, signer) == (0, public.read_text().split()[-1])
    assert run("verify", one.id)[1].endswith(", every one as built, signed by a trusted key\n")
    assert run("promote", "--default", one.id)[0] == 0
    assert f"signature     by {signer}, which is trusted\n" in run("show")[1]
    assert f"signature     release {two.id} is unsigned" in run("show", two.id)[1]
    monkeypatch.delenv("TANDEM_TRUSTED_KEYS")
    assert f"signature     by {signer}; not checked, TANDEM_TRUSTED_KEYS is not set\n" in run("show")[1]


def test_a_damaged_release_is_not_signed(run: Run, one: Release, place: Path) -> None:
    run("keygen", "--out", place / "key")
    (Path(one.place) / "config.json").write_text("{}")
    assert run("sign", "--key", place / "key", one.id)[0] == 2
    assert not (Path(one.place) / "signature.json").exists()


@pytest.mark.parametrize("left", ["key", "key.pub"])
def test_a_key_is_never_written_over(run: Run, place: Path, left: str) -> None:
    (place / left).write_text("another")
    status, _, complaint = run("keygen", "--out", place / "key")
    says = f"{place / left}: exists; a key is never written over another\n"
    assert (status, complaint) == (2, f"shared_model keygen: {says}")
    assert [path.name for path in place.iterdir() if path.is_file()] == [left]
    assert (place / left).read_text() == "another"


def test_an_active_release_is_not_built_again(run: Run, one: Release) -> None:
    run("promote", "--default", one.id)
    assert run("build", "--if-missing") == (0, f"release {one.id} is active; nothing to build\n", "")


@pytest.mark.parametrize("option", ["--count", "--days"])
def test_messages_are_at_least_one(run: Run, place: Path, option: str) -> None:
    assert run("messages", option, "-1") == (2, "", f"shared_model messages: {option}: is -1; expected 1 or more\n")
    assert not (place / "messages").exists()


def test_messages_say_what_they_wrote_and_where(run: Run, place: Path) -> None:
    assert run("messages", "--count", "100") == (
        0,
        f"100 messages in {place / 'messages'}: ds=2026-01-14, ds=2026-01-15\n",
        "",
    )
    assert (place / "messages" / "ds=2026-01-15" / "messages.jsonl").exists()
    there = f"ds=2026-01-14, ds=2026-01-15 in {place / 'messages'}: there already; nothing written\n"
    assert run("messages", "--count", "100") == (0, there, "")
    assert run("messages", "--count", "100", "--days", "3") == (
        0,
        f"written to {place / 'messages'}: ds=2026-01-16\n{there}",
        "",
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train-head", "--data", "/nope.csv", "--out", "x"], "train-head: /nope.csv: cannot be read: No such file"),
        (["sign", "--key", "/nope.key", "@active"], "sign: no release is active in .*: run"),
        (["rm", "@active"], "rm: no release is active in .*: run"),
        (["rm", "small-0123456789ab"], "rm: release small-0123456789ab is not in .*; nothing was removed"),
        (["verify"], "verify: no release is active in .*: run `python -m shared_model build`"),
        (["show"], "show: no release is active in .*: run `python -m shared_model build`"),
        (["rollback"], "rollback: no release is active in .*: run `python -m shared_model build`"),
        (["verify", "../../etc"], "verify: '../../etc' is not a release id"),
        (["diff", "small-0123456789ab", "x"], "diff: release small-0123456789ab is not in "),
        (["promote", "small-0123456789ab"], "promote: release small-0123456789ab is not in "),
        (["canary", "small-0123456789ab", "--weight", "0.1"], "canary: release small-0123456789ab is not in "),
        (["sign", "--key", "nowhere", "x"], "sign: 'x' is not a release id"),
        (["keygen", "--out", "nowhere/key"], "keygen: .*nowhere/key"),
        (["build", "--head", "nowhere"], "build: .*nowhere"),
        (["build", "--eval", "nowhere.csv"], "build: .*nowhere.csv"),
        (["train-head", "--data", "nowhere.csv", "--out", "x"], "train-head: .*nowhere.csv"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(run: Run, arguments: list[str], line: str) -> None:
    status, _, complaint = run(*arguments)
    assert status == 2
    assert re.match(f"shared_model {line}", complaint)
    assert complaint.count("\n") == 1
