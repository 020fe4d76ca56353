"""Alert rules: Prometheus' own tool accepts them, they fire in outages and not otherwise, and each has a runbook."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.debian import program

pytestmark = pytest.mark.heavy

DEPLOY = Path(__file__).parents[2] / ".deploy"
FILES = sorted(path for path in (DEPLOY / "prometheus").glob("*.yml") if "groups:" in path.read_text())
TESTS = sorted((DEPLOY / "prometheus").glob("*.test.yml"))
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text()


def alerts() -> dict[str, dict[str, Any]]:
    groups = [group for path in FILES for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def sections() -> dict[str, list[str]]:
    """The lines of each section of the runbook."""
    found: dict[str, list[str]] = {}
    for line in RUNBOOK.splitlines():
        if line.startswith("## "):
            lines = found[line[3:]] = []
        elif found and line:
            lines.append(line)
    return found


def promtool(*arguments: object, folder: Path = DEPLOY / "prometheus") -> "subprocess.CompletedProcess[str]":
    command = [program("prometheus", "promtool"), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


def test_prometheus_accepts_its_configuration_and_loads_every_file_of_rules(tmp_path: Path) -> None:
    settings = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert {FILES[0].parent / name for name in settings["rule_files"]} == set(FILES)
    ran = promtool("check", "rules", *FILES)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # Without the certificates, which only a host has.
    for job in settings["scrape_configs"]:
        job.pop("tls_config", None)
    for path in FILES:
        shutil.copy(path, tmp_path)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    ran = promtool("check", "config", tmp_path / "prometheus.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_alerts_fire_in_outages_and_not_otherwise(path: Path) -> None:
    ran = promtool("test", "rules", path.name)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_is_tested_firing_and_silent() -> None:
    checks = [
        check
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for check in test["alert_rule_test"]
    ]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == set(alerts())
    silent = {check["alertname"] for check in checks if not check["exp_alerts"]}
    assert set(alerts()) - silent <= {"LaneTooSlow", "ReplicaFull", "RedisDown", "ReplicaDown"}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("outages", 'outcome=~"late|refused|expired|failed"', 'outcome=~"late|refused|expired"'),
        ("outages", 'outcome="failed"', 'outcome="late"'),
        ("nights", "and max(tandem_nightly_expected) == 1", ""),
        ("nights", "[4h] offset 26h", "[4h]"),
        ("nights", "offset 1d", "offset 2d"),
        ("outages", 'absent(up{job="tandem"} == 1)', 'absent(up{job="tandem"})'),
        ("outages", 'and on () group(up{job="tandem"} == 1)', ""),
    ],
)
def test_control_a_changed_rule_fails_its_test(tmp_path: Path, name: str, old: str, new: str) -> None:
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    assert old in text
    (tmp_path / "alerts.yml").write_text(text.replace(old, new))
    shutil.copy(DEPLOY / "prometheus" / f"{name}.test.yml", tmp_path)
    assert promtool("test", "rules", f"{name}.test.yml", folder=tmp_path).returncode != 0


def test_each_alert_links_its_section_of_the_runbook() -> None:
    assert set(sections()) == set(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"RUNBOOK.md#{name.lower()}", name
        assert rule["labels"]["severity"] in ("page", "ticket"), name


def test_a_section_is_short_and_says_what_an_alert_means_where_to_look_and_what_to_do() -> None:
    for name, lines in sections().items():
        assert len(lines) <= 6, name
        assert re.findall(r"\*\*(\w+(?: at)?):\*\*", "\n".join(lines)) == ["Meaning", "Look at", "Do"], name
