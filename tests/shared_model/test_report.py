"""A release's report: what it counts is right, and both of its forms say the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared_model.engine import Engine
from shared_model.releases import parity, report, store
from shared_model.releases.manifest import Variant
from shared_model.releases.parity import Parity
from shared_model.releases.report import Confusion, Latency, ReleaseReport, VariantReport
from shared_model.types import Device, Precision


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (1, 9, 0.021484375), (9, 1, 0.021484375), (0, 5, 0.0625), (3, 12, 0.03515625)],
)
def test_mcnemar_is_the_exact_test_on_texts_that_differ(gained: int, lost: int, p: float) -> None:
    """p = 2 · P(X ≤ min(gained, lost)) of a fair coin, at most 1; texts on which both agree change nothing."""
    right = np.array([True] * gained + [False] * lost + [True] * 40 + [False] * 7)
    reference_right = np.array([False] * gained + [True] * lost + [True] * 40 + [False] * 7)
    assert parity.mcnemar_p(right, reference_right) == pytest.approx(p, abs=1e-12)


def test_confusion_counts_pairs_most_frequent_first() -> None:
    def scores(best: list[int]) -> Any:
        return np.eye(3, dtype=np.float32)[best]

    found = report.confusion(scores([1, 1, 0, 2, 1, 2]), scores([0, 0, 0, 1, 0, 2]), ("a", "b", "c"))
    assert found == (Confusion("a", "b", 3), Confusion("b", "c", 1))


def test_at_most_ten_confusions_are_kept() -> None:
    reference = np.eye(12, dtype=np.float32)
    found = report.confusion(np.roll(reference, 1, axis=1), reference, [f"label{i}" for i in range(12)])
    assert len(found) == 10


def test_every_shape_the_model_can_read_is_timed(engines: dict[Precision, Engine]) -> None:
    profile = report.latency_profile(engines[Precision.INT8], max_tokens=16, shapes=[(1, 8), (2, 16), (1, 24)])
    assert [(latency.rows, latency.tokens) for latency in profile] == [(1, 8), (2, 16)]
    assert all(0 < latency.milliseconds < 5_000 for latency in profile)


def test_a_variant_is_as_large_as_the_files_it_is_opened_from(tmp_path: Path) -> None:
    (tmp_path / "int8").mkdir()
    for path, size in (("int8/model.xml", 10), ("int8/model.bin", 300), ("weights.safetensors", 5_000)):
        (tmp_path / path).write_bytes(b"x" * size)
    files = {"model.xml": "int8/model.xml", "model.bin": "int8/model.bin", "again": "int8/model.bin"}
    assert report.size_bytes(tmp_path, Variant(Precision.INT8, Device.CPU, files)) == 310


def variant(precision: str, compiled: str, **changes: Any) -> VariantReport:
    measured = Parity(precision, "cpu", compiled, 3080, 1.0, 1.0, 0.0, 0.9305, 0.9305, 1.0, ())
    latency = (Latency(1, 8, 0.834), Latency(64, 32, 69.126))
    return VariantReport(replace(measured, **changes), 23_456_789, 2, latency, ())


INT8 = replace(
    variant(
        "int8",
        "int8",
        agreement=0.9951,
        clear_agreement=None,
        accuracy=0.9262,
        mcnemar_p=0.0215,
        max_probability_difference=0.1234,
        failures=("loses 0.43 points of accuracy, may lose 0.3",),
    ),
    confusion=(Confusion("card_arrival", "lost_card", 3), Confusion("top_up", "top_up_limits", 1)),
)
REPORT = ReleaseReport(
    "small-0123456789ab", "labelled", "e" * 64, "c" * 64, (variant("fp32", "fp32"), INT8), ("fp16/cuda",)
)


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    report.write(tmp_path, REPORT)
    document = json.loads((tmp_path / store.REPORT).read_text())
    page = (tmp_path / report.MARKDOWN).read_text()

    assert page.startswith(f"# {document['release']}: REFUSED\n")
    assert document["passed"] is False
    for fact in (*document["unproven"], document["evaluation_sha256"], document["calibration_sha256"]):
        assert fact in page
    for v in document["variants"]:
        agreement, latency = rows_of(page, f"{v['precision']}/{v['device']}")[:2]
        assert agreement[1:] == expected_row(v)
        assert latency[1:] == [str(v["threads"]), *(f"{shape['milliseconds']:.2f}" for shape in v["latency"])]
        assert all(f"{v['precision']}/{v['device']} {failure}\n" in page for failure in v["failures"])


def test_what_int8_changes_is_listed(tmp_path: Path) -> None:
    report.write(tmp_path, REPORT)
    (confused,) = [v["confusion"] for v in json.loads((tmp_path / store.REPORT).read_text())["variants"][1:]]
    assert confused == [
        {"reference": "card_arrival", "variant": "lost_card", "texts": 3},
        {"reference": "top_up", "variant": "top_up_limits", "texts": 1},
    ]
    listed = rows_of((tmp_path / report.MARKDOWN).read_text(), "int8/cpu")[2:]
    assert listed == [["int8/cpu", "card_arrival", "lost_card", "3"], ["int8/cpu", "top_up", "top_up_limits", "1"]]


def test_without_labels_accuracy_is_unknown_not_zero() -> None:
    unlabelled = variant("int8", "int8", accuracy=None, reference_accuracy=None, mcnemar_p=None)
    (row, _) = rows_of(replace(REPORT, variants=(unlabelled,)).to_markdown(), "int8/cpu")
    assert row[4:7] == ["–", "–", "–"]
    assert unlabelled.to_document()["accuracy_drop_points"] is None


def rows_of(page: str, variant: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(f"| {variant} |")]


def expected_row(v: dict[str, Any]) -> list[str]:
    """The agreement table's cells, from the JSON form."""
    clear = v["clear_agreement"]
    return [
        v["compiled"],
        f"{v['agreement']:.2%}",
        "–" if clear is None else f"{clear:.2%}",
        f"{v['accuracy']:.2%}",
        f"{(v['reference_accuracy'] - v['accuracy']) * 100:.2f}",
        f"{v['mcnemar_p']:.3f}",
        f"{v['max_probability_difference']:.4f}",
        f"{v['size_bytes'] / 1e6:.1f}",
    ]
