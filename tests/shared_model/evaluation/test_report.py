"""A release's report: what it counts is right, and both of its forms say the same."""

import json
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared_model import devices
from shared_model.encoding import InputSpec, TokenBatch
from shared_model.engine import Engine
from shared_model.evaluation import benchmark, report, verdict
from shared_model.evaluation.benchmark import Budget, Latency
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.parity import Parity
from shared_model.evaluation.verdict import Added, Confusion, Example, ReleaseReport, Tried, Verdict
from shared_model.output import Floats, OutputKind, OutputSpec
from shared_model.releases.manifest import Variant
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.shared_model import tiny_builds

LABELS = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b", "c"), 3)


def certain(best: list[int], width: int = 3) -> Floats:
    return np.eye(width, dtype=np.float32)[best]


def test_confusion_counts_pairs_most_frequent_first() -> None:
    found = verdict.confusion(LABELS, certain([1, 1, 0, 2, 1, 2]), certain([0, 0, 0, 1, 0, 2]))
    assert found == (Confusion("a", "b", 3), Confusion("b", "c", 1))


def test_at_most_ten_confusions_are_kept() -> None:
    output = OutputSpec(OutputKind.SINGLE_LABEL, tuple(f"label{i}" for i in range(12)), 12)
    reference = np.eye(12, dtype=np.float32)
    assert len(verdict.confusion(output, np.roll(reference, 1, axis=1), reference)) == 10


def test_of_several_labels_sets_are_confused() -> None:
    output = OutputSpec(OutputKind.MULTI_LABEL, ("a", "b"), 2)
    reference = np.array([[0.9, 0.8], [0.9, 0.8], [0.1, 0.2]], np.float32)
    scores = np.array([[0.9, 0.3], [0.9, 0.3], [0.6, 0.2]], np.float32)
    assert verdict.confusion(output, scores, reference) == (Confusion("a|b", "a", 2), Confusion("no label", "a", 1))


@pytest.mark.parametrize("kind", [OutputKind.REGRESSION, OutputKind.EMBEDDING])
def test_numbers_are_not_confused(kind: OutputKind) -> None:
    output = OutputSpec(kind, ("x",) if kind is OutputKind.REGRESSION else (), 1)
    assert verdict.confusion(output, np.ones((3, 1), np.float32), -np.ones((3, 1), np.float32)) == ()


def test_examples_begin_where_the_reference_was_surest() -> None:
    reference = np.array([[0.5, 0.4, 0.1], [0.9, 0.1, 0], [0.7, 0.2, 0.1], *[[0.4, 0.3, 0.3]] * 9], np.float32)
    found = verdict.examples(LABELS, np.roll(reference, 1, axis=1), reference, [f"text {i}" for i in range(12)])
    assert [example.text for example in found[:3]] == ["text 1", "text 2", "text 0"]
    assert found[0] == Example("text 1", "a", "b", "fp32 prefers its label by 0.80")
    assert len(found) == 5


def test_examples_of_numbers_say_how_far_they_are_off() -> None:
    output = OutputSpec(OutputKind.REGRESSION, ("stars",), 1)
    reference = np.array([[1.0], [2], [3], [4]], np.float32)
    (found,) = verdict.examples(output, reference + np.array([[0], [0], [0.5], [0]]), reference, "pqrs")
    assert found == Example("r", "3", "3.5", "0.45 standard deviations apart")


def test_every_shape_the_model_can_read_is_timed(engines: dict[Precision, Engine]) -> None:
    shapes = [(1, 8), (2, 16), (1, 24)]
    profile = benchmark.latency_profile(engines[Precision.INT8], InputSpec(16), shapes=shapes)
    assert [(timed.rows, timed.tokens) for timed in profile] == [(1, 8), (2, 16)]
    assert all(0 < timed.milliseconds < 5_000 and timed.threads == devices.cores() for timed in profile)


class Busy:
    """An engine beside other work: its first calls take `milliseconds`, later ones nothing."""

    precision, device, width = Precision.INT8, Device.CPU, 2

    def __init__(self, milliseconds: float, calls: int) -> None:
        self._seconds, self._left = milliseconds / 1000, calls

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        pass

    def score(self, batch: TokenBatch) -> Floats:
        self._left -= 1
        until = time.perf_counter() + (self._seconds if self._left >= 0 else 0)
        while time.perf_counter() < until:
            pass
        return np.zeros((batch.rows, 1), np.float32)

    def close(self) -> None:
        pass


@pytest.mark.heavy
@pytest.mark.parametrize(("busy_calls", "refused"), [(0, False), (8, False), (10_000, True)])
def test_a_pause_of_the_machine_refuses_nothing(busy_calls: int, refused: bool) -> None:
    budget = Budget(1, 32, 2.0, "TANDEM_GATE_LATENCY_MS")
    said = benchmark.over_budget(Busy(5, busy_calls), InputSpec(16), budget)
    assert (said is not None) == refused
    if said:
        # A pause may make the best call longer than it is.
        told = re.fullmatch(
            r"takes (\d+\.\d) ms for 1×16 tokens on 2 threads, its lane allows 2 ms \(TANDEM_GATE_LATENCY_MS\)", said
        )
        assert told
        assert float(told[1]) >= 5


@pytest.mark.parametrize("precision", Precision)
def test_every_lane_has_its_budget(precision: Precision) -> None:
    budget = benchmark.budget_of(precision, GateSettings())
    expected = {Precision.FP32: None, Precision.INT8: (1, 32, 13.0)}.get(precision, (64, 32, 500.0))
    assert (budget and (budget.rows, budget.tokens, budget.milliseconds)) == expected


@pytest.mark.heavy
def test_a_variant_is_as_large_as_the_files_it_is_opened_from(tiny: tuple[Release, ReleaseReport]) -> None:
    release, _ = tiny
    files = {"model.xml": "int8/model.xml", "model.bin": "int8/model.bin", "again": "int8/model.bin"}
    expected = len(release.read("int8/model.xml")) + len(release.read("int8/model.bin"))
    assert release.size(Variant(Precision.INT8, Device.CPU, files)) == expected


def variant(precision: str, **changes: Any) -> Verdict:
    more: dict[str, Any] = {"clear_texts": 3000, "clear_bound": 1.0, "labelled_clear": 3000, "loss_p": 0.5}
    measured = Parity(3080, 1.0, 1.0, 0.0, 0.9305, 0.9305, 1.0, (), **more, discordance=0.0, detected_points=(0.3, 0.4))
    latency = (Latency(2, 1, 8, 0.834), Latency(2, 64, 32, 69.126), Latency(1, 1, 8, 1.5), Latency(1, 64, 32, 120.5))
    return Verdict(precision, "cpu", (), 23_456_789, precision, replace(measured, **changes), latency)


LOST = "loses 0.43 points of accuracy, may lose 0.3 (TANDEM_GATE_MAX_ACCURACY_DROP)"
SLOW = "takes 20.0 ms for 1×32 tokens on 2 threads, its lane allows 13 ms (TANDEM_GATE_LATENCY_MS)"
INT8 = replace(
    variant(
        "int8",
        agreement=0.9951,
        clear_agreement=None,
        accuracy=0.9262,
        mcnemar_p=0.0215,
        loss_p=0.0074,
        clear_bound=None,
        discordance=0.0123,
        detected_points=(0.66, 0.8),
        max_difference=0.1234,
        failures=(LOST,),
    ),
    failures=(LOST,),
    slow_here=SLOW,
    confusion=(Confusion("card_arrival", "lost_card", 3), Confusion("top_up", "top_up_limits", 1)),
    examples=(Example("a|b\nc " + "x" * 200, "card_arrival", "lost_card", "fp32 prefers its label by 0.31"),),
)
BROKEN = Verdict("bf16", "cpu", ("cannot run: no such instruction",), 1000)
REPORT = ReleaseReport(
    release="small-0123456789ab",
    output="single_label",
    quantisation="the second",
    tried=(Tried("the first", 0.97, ("names too few",)), Tried("the second", None, ("cannot run: no",))),
    evaluation="labelled",
    evaluation_sha256="e" * 64,
    calibration_sha256="c" * 64,
    variants=(variant("fp32"), BROKEN, INT8),
    unproven=("fp16/cuda",),
)


def test_both_forms_say_the_same(tiny: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    release = tiny_copy(tiny, tmp_path)
    report.write(release, REPORT)
    document = json.loads(release.read_note(report.JSON) or b"")
    page = (release.read_note(report.MARKDOWN) or b"").decode()

    assert page.startswith(f"# {document['release']}: REFUSED\n")
    assert document["passed"] is False
    facts = ("evaluation_sha256", "calibration_sha256", "quantisation", "evaluation")
    for fact in (*document["unproven"], *(document[name] for name in facts)):
        assert fact in page
    for v in document["variants"]:
        agreement, *latency = rows_of(page, f"{v['precision']}/{v['device']}", columns=(10, 4))
        assert agreement[1:] == expected_row(v)
        timed = [
            [f"{v['precision']}/{v['device']}", str(threads)]
            + [f"{one['milliseconds']:.2f}" for one in v["latency"] if one["threads"] == threads]
            for threads in dict.fromkeys(one["threads"] for one in v["latency"])
        ]
        assert latency[: len(timed)] == timed
        assert all(f"- {v['precision']}/{v['device']} {failure}\n" in page for failure in v["failures"])
    for tried in document["tried"]:
        agreement = "–" if tried["agreement"] is None else f"{tried['agreement']:.2%}"
        assert f"| {tried['recipe']} | {agreement} | {tried['failures'][0]} |" in page
    assert report.tried_before(release) == REPORT.tried
    assert report.calibrated_before(release) == ""


def test_a_refusal_says_why_where_and_what_to_do() -> None:
    page = report.page(REPORT)
    for advice in (
        "`--calibrate`",
        f"- int8/cpu slow here: {SLOW}\n",
        "does not run",
        "gate --release small-0123456789ab",
    ):
        assert advice in page
    text = "a\\|b c " + "x" * 114 + "…"
    assert f"| int8/cpu | {text} | card_arrival | lost_card | fp32 prefers its label by 0.31 |" in page
    passed = report.page(replace(REPORT, variants=(variant("fp32"),)))
    assert "Next steps" not in passed


def test_a_report_says_which_losses_its_texts_can_show() -> None:
    line = (
        "- int8/cpu: it or fp32 alone is right on 1.23% of the labelled texts; at this discordance they show a loss of "
        "0.66 points with 80 % probability, of 0.80 points with 95 %\n"
    )
    page = report.page(REPORT)
    assert line in page
    assert "fp32/cpu: it or" not in page
    values = replace(REPORT, output="regression", variants=(variant("int8", discordance=None, loss_p=None),))
    assert "- int8/cpu: a rank correlation has no paired test; any loss above the bound is refused\n" in report.page(
        values
    )


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        (
            {"texts": 60, "labelled_clear": 40},
            "accuracy of variants is not judged: 300 labelled texts with a clear label are needed, and 40 of the 60 "
            "labelled texts are such; about 450 texts would be needed",
        ),
        (
            {"texts": 60, "labelled_clear": 0},
            "accuracy of variants is not judged: 300 labelled texts with a clear label are needed, and 0 of the 60 "
            "labelled texts are such",
        ),
        (
            {"accuracy": None, "labelled_clear": 0},
            "accuracy of variants is not judged: no text is labelled, 300 labelled texts with a clear label are needed "
            "(--eval)",
        ),
    ],
)
def test_a_report_says_why_accuracy_is_not_judged_and_how_many_texts_would_be_needed(
    measured: dict[str, Any], line: str
) -> None:
    added = (Added("held-out", 200, "1" * 64), Added("generated", 60, "2" * 64))
    page = report.page(replace(REPORT, variants=(variant("fp32"), variant("int8", **measured)), added=added))
    assert f"- {line}\n" in page
    assert "at this discordance" not in page
    assert f"- agreement also on 60 generated texts, sha256 `{'2' * 64}`\n" in page


def test_a_report_says_which_texts_int8_is_calibrated_on() -> None:
    page = report.page(replace(REPORT, calibration="400 texts of training-texts.jsonl"))
    assert f"- INT8 calibrated on 400 texts of training-texts.jsonl, sha256 `{'c' * 64}`\n" in page
    assert f"- INT8 calibrated on texts, sha256 `{'c' * 64}`\n" in report.page(REPORT)


def test_only_what_failed_is_advised_on() -> None:
    page = report.page(replace(REPORT, variants=(variant("fp32"), BROKEN)))
    assert "does not run" in page
    assert "--calibrate" not in page


def test_a_variant_that_is_slow_here_is_named_in_a_report_that_passed() -> None:
    slow = replace(variant("int8"), slow_here=SLOW)
    page = report.page(replace(REPORT, variants=(variant("fp32"), slow)))
    assert page.startswith("# small-0123456789ab: passed\n")
    assert f"- int8/cpu slow here: {SLOW}\n" in page
    assert "Next steps" not in page


def test_what_int8_changes_is_listed() -> None:
    confused = json.loads(json.dumps(REPORT.to_document()))["variants"][2]["confusion"]
    assert confused == [
        {"reference": "card_arrival", "variant": "lost_card", "texts": 3},
        {"reference": "top_up", "variant": "top_up_limits", "texts": 1},
    ]
    listed = rows_of(report.page(REPORT), "int8/cpu", columns=(4,))[-2:]
    assert listed == [["int8/cpu", "card_arrival", "lost_card", "3"], ["int8/cpu", "top_up", "top_up_limits", "1"]]


def test_without_labels_accuracy_is_unknown_not_zero() -> None:
    unlabelled = variant("int8", accuracy=None, reference_accuracy=None, mcnemar_p=None, loss_p=None)
    (row,) = rows_of(report.page(replace(REPORT, variants=(unlabelled,))), "int8/cpu", columns=(10,))
    assert row[5:8] == ["–", "–", "–"]
    assert unlabelled.to_document()["accuracy_drop_points"] is None


def test_a_damaged_report_has_tried_nothing(tiny: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    release = tiny_copy(tiny, tmp_path)
    assert report.tried_before(release) == ()
    for damaged in (b"{", b"[]", b'{"tried": [{"recipe": "x"}]}', b'{"tried": 7}'):
        release.write_note(report.JSON, damaged)
        assert report.tried_before(release) == ()
        assert report.calibrated_before(release) == ""


def tiny_copy(tiny: tuple[Release, ReleaseReport], root: Path) -> Release:
    return tiny_builds.resealed(tiny[0], root)


def rows_of(page: str, variant: str, columns: tuple[int, ...]) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(f"| {variant} |")]
    return [row for row in rows if len(row) in columns]


def expected_row(v: dict[str, Any]) -> list[str]:
    """The agreement table's cells, from the JSON form."""
    if v["compiled"] is None:
        return ["–"] * 8 + [f"{v['size_bytes'] / 1e6:.1f}"]
    clear = v["clear_agreement"]
    return [
        v["compiled"],
        f"{v['agreement']:.2%}",
        "–" if clear is None else f"{clear:.2%}",
        "–" if v["clear_bound"] is None else f"{v['clear_bound']:.2%}",
        f"{v['accuracy']:.2%}",
        f"{(v['reference_accuracy'] - v['accuracy']) * 100:.2f}",
        f"{v['loss_p']:.3f}",
        f"{v['max_difference']:.4f}",
        f"{v['size_bytes'] / 1e6:.1f}",
    ]
