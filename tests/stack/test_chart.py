"""`make check` on a Helm chart that it cannot check, and on one that is wrong."""

import pytest
from tandem_stack import chart
from tandem_stack.checks import Problem


@pytest.mark.parametrize(("ci", "status"), [("true", 2), ("", 0)])
def test_without_helm_a_line_says_so_and_ci_fails(
    ci: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> str:
        raise Problem("helm cannot be downloaded: no route to host")

    monkeypatch.setattr(chart, "helm", missing)
    monkeypatch.setenv("CI", ci)
    assert chart.main() == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("chart: not checked: helm cannot be downloaded: no route to host")


@pytest.mark.parametrize("wrong", [["trial.yaml: Deployment: replicas"], Problem("helm template: no such value")])
def test_a_chart_that_is_wrong_fails_everywhere(
    wrong: list[str] | Problem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check() -> list[str]:
        if isinstance(wrong, Problem):
            raise wrong
        return wrong

    monkeypatch.setattr(chart, "helm", lambda: "helm")
    monkeypatch.setattr(chart, "_definitions", dict)
    monkeypatch.setattr(chart, "check", check)
    monkeypatch.delenv("CI", raising=False)
    assert chart.main() == 1
    assert str(wrong[0] if isinstance(wrong, list) else wrong) in capsys.readouterr().err


def test_a_wheel_is_fixed_by_its_hash() -> None:
    for package in (chart.HELM, chart.SCHEMAS):
        name, hashed = package.split()
        assert "==" in name
        assert hashed.startswith("--hash=sha256:")
        assert len(hashed) == len("--hash=sha256:") + 64
