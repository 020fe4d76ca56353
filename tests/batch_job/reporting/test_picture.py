"""The plot of the labels as a file of its own, which a browser shows as a picture."""

from dataclasses import replace
from xml.etree import ElementTree

from batch_job.reporting import picture
from batch_job.run_record import Findings
from tests.batch_job.test_run_record import PLANNED

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>\x00 & co"


def test_it_is_an_svg_file_with_its_own_style_and_names_are_text() -> None:
    findings = Findings(3, {"yes": 2, HOSTILE: 1}, (), before="2026-01-14", labels_before={"yes": 1})
    drawn = ElementTree.fromstring(picture.labels(replace(PLANNED, findings=findings)))  # noqa: S314 (our own)
    assert (drawn.tag, drawn.get("width")) == (f"{SVG}svg", "720")
    assert "--paper" in str(drawn.findtext(f"{SVG}style"))
    assert list(drawn.iter(f"{SVG}script")) == []
    assert f"{HOSTILE.replace(chr(0), chr(0xFFFD))}: 33.3%; " in str(drawn.findtext(f"{SVG}desc"))


def test_without_labels_nothing_is_drawn() -> None:
    assert picture.labels(PLANNED) == ""
    assert picture.labels(replace(PLANNED, findings=Findings(2, {}, ()))) == ""
