"""docker-compose.yml: every process is there, and nothing listens beyond this machine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

EXPECTED = {
    "redis", "release",
    "router", "latency", "throughput",
    "spark-master", "spark-worker",
    "postgres", "airflow-init", "airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer",
    "prometheus", "grafana",
}  # fmt: skip


def dockerfiles() -> set[str]:
    return {service["build"]["dockerfile"] for service in SERVICES.values() if "build" in service}


def test_every_process_is_a_service() -> None:
    assert set(SERVICES) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_published_ports_are_on_loopback(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_published_ports_differ() -> None:
    published = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == len(set(published))
    assert {"50051", "9464", "8080"} <= set(published)  # where `make up` serves too


def test_secrets_come_from_the_environment_only() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("(PASSWORD|SECRET|FERNET).*(?<!_FILE)$|_AUTH$", variable):
                assert re.fullmatch(r"\$\{\w+\}", value), f"{name}: {variable}"
    assert not re.search(r"://\w*:(?!\$\{)[^@/\s]+@", TEXT), "a password in a URL"


def test_the_example_has_every_variable_and_no_other() -> None:
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", TEXT))
    offered = set(re.findall(r"^(\w+)=", (REPOSITORY / ".env.example").read_text(), re.MULTILINE))
    assert used == offered


def test_what_services_refer_to_exists() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", [])) <= set(SERVICES), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (REPOSITORY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], name


@pytest.mark.parametrize("dockerfile", sorted(dockerfiles()))
def test_dockerfiles_copy_what_exists_and_run_as_nobody_special(dockerfile: str) -> None:
    text = (REPOSITORY / dockerfile).read_text()
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    for source in copied:
        assert source.startswith("--") or (REPOSITORY / source).exists(), source
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users[-1] in ("airflow", "50000:0")


def test_airflow_images_have_the_locked_versions() -> None:
    lock = (REPOSITORY / "requirements-airflow.lock").read_text()
    for package, version in re.findall(
        r"(apache-airflow[a-z-]*)==([\d.]+)", (REPOSITORY / "dags/Dockerfile").read_text()
    ):
        assert f"\n{package}=={version} \\\n" in lock


def test_every_replica_is_scraped() -> None:
    scraped = yaml.safe_load((REPOSITORY / ".deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for group in job["static_configs"] for target in group["targets"]}
    replicas = {name for name, service in SERVICES.items() if service.get("image") == "tandem/realtime-service"}
    assert targets == {f"{name}:9464" for name in replicas}
