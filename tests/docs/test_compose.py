"""docker-compose.yml: every process is there, nothing listens beyond this machine, and all of ours have TLS."""

import itertools
import re
import shlex
import ssl
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]

import realtime_service.__main__ as service_command
import shared_model.__main__ as model_command
from batch_job.launch import commands
from batch_job.settings import NightlySettings
from shared_model import settings
from shared_model.tls import CertificateFiles, TlsSettings

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

EXPECTED = {
    "certificates", "redis", "release",
    "router", "latency", "throughput",
    "spark-master", "spark-worker",
    "postgres", "airflow-init", "airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer",
    "prometheus", "alertmanager", "grafana",
    "backup-redis", "backup-postgres", "backup-files",
}  # fmt: skip
#: They end by themselves, so that they have no health.
ENDING = {"certificates", "release", "airflow-init", "backup-redis", "backup-postgres", "backup-files"}
#: It writes into a folder of the host, for whichever user has it.
ROOT = {"certificates"}


#: Where the certificates are on the host, and where each service finds its own.
MADE, MOUNTED = "./.deploy/certificates", "/run/tandem/tls"
REPLICAS = sorted(name for name, service in SERVICES.items() if service.get("image") == "tandem/realtime-service")
CALL_REDIS = sorted(name for name, service in SERVICES.items() if "REDIS_URL" in service.get("environment", {}))


def certificate_of(name: str) -> str:
    """The host whose certificate a service mounts."""
    (found,) = [it.split(":")[0] for it in SERVICES[name]["volumes"] if it.split(":")[1] == MOUNTED]
    return str(found.removeprefix(f"{MADE}/"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those that compose's own command makes."""
    folder = tmp_path_factory.mktemp("certificates")
    command = shlex.split(SERVICES["certificates"]["command"])
    assert command[:3] == ["python", "-m", "shared_model"]
    assert model_command.main([str(folder) if it == "/certificates" else it for it in command[3:]]) == 0
    return folder


def dockerfiles() -> set[str]:
    return {service["build"]["dockerfile"] for service in SERVICES.values() if "build" in service}


def test_every_process_is_a_service() -> None:
    assert set(SERVICES) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_published_ports_are_on_loopback(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_the_pool_of_tasks_that_take_the_device_is_made_before_any_task_runs() -> None:
    """A task of a pool that is not there never runs."""
    command = SERVICES["airflow-init"]["command"][-1]
    assert f"airflow pools set {commands.DEVICE_POOL} 1 " in command
    # The slots that operators have set stay.
    assert command.index(f"airflow pools get {commands.DEVICE_POOL} ") < command.index("airflow pools set")
    assert "airflow-init" in SERVICES["airflow-scheduler"]["depends_on"]


def test_published_ports_differ() -> None:
    published = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == len(set(published))
    assert {"50051", "9464", "8080"} <= set(published)  # where `make up` serves too


def test_secrets_come_from_the_environment_only() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("(PASSWORD|SECRET|FERNET|WEBHOOK).*(?<!_FILE)$|_AUTH$", variable):
                assert re.fullmatch(r"\$\{\w+:\?set it in \.env\}", value), f"{name}: {variable}"
    assert not re.search(r"://\w*:(?!\$\{)[^@/\s]+@", TEXT), "a password in a URL"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}
    assert (service["user"].partition(":")[0] == "0") is (name in ROOT)
    assert set(service.get("cap_add", [])) <= ({"DAC_OVERRIDE"} if name in ROOT else set())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_folder_in_memory_may_be_written_by_the_services_user(name: str) -> None:
    """Docker makes it root's, with the mode of the image's folder."""
    user = SERVICES[name]["user"].partition(":")[0]
    for mounted in SERVICES[name].get("tmpfs", []):
        folder, _, options = mounted.partition(":")
        assert folder == "/tmp" or f"uid={user}" in options.split(","), mounted  # noqa: S108


@pytest.mark.parametrize("name", ["spark-master", "spark-worker", "airflow-scheduler"])
def test_a_jvm_may_load_the_libraries_that_it_unpacks(name: str) -> None:
    """Docker forbids it by default: then no night is scored, UnsatisfiedLinkError of zstd."""
    assert "/tmp:exec" in SERVICES[name]["tmpfs"]  # noqa: S108


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_service_that_stays_has_a_health_check_and_waits_for_those_of_others(name: str) -> None:
    service = SERVICES[name]
    assert ("healthcheck" in service) is (name not in ENDING)
    for other, needed in dict(service.get("depends_on", {})).items():
        assert needed["condition"] == f"service_{'completed_successfully' if other in ENDING else 'healthy'}"


def test_redis_has_a_bound_below_that_of_its_container() -> None:
    words = SERVICES["redis"]["command"].split()
    bound, limit = words[words.index("--maxmemory") + 1], SERVICES["redis"]["mem_limit"]
    sizes = [int(found[1]) for it in (bound, limit) if (found := re.fullmatch(r"\$\{\w+:-(\d)gb?\}", it))]
    # Four epochs, as the settings allow by default, have room.
    assert 4 * NightlySettings().publish_megabytes / 1000 < sizes[0] < sizes[1]
    assert words[words.index("--maxmemory-policy") + 1] == "noeviction"


def test_the_example_has_every_variable_and_no_other() -> None:
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", TEXT))
    offered = set(re.findall(r"^(\w+)=", (REPOSITORY / ".env.example").read_text(), re.MULTILINE))
    assert used == offered


def test_what_services_refer_to_exists() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", [])) <= set(SERVICES), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if not source.startswith(MADE):
                assert (REPOSITORY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], name


@pytest.mark.parametrize("dockerfile", sorted(dockerfiles()))
def test_dockerfiles_copy_what_exists_and_run_as_nobody_special(dockerfile: str) -> None:
    assert copied(dockerfile)
    for source in copied(dockerfile):
        assert (REPOSITORY / source).exists(), source
    users = re.findall(r"^USER (\S+)$", (REPOSITORY / dockerfile).read_text(), re.MULTILINE)
    assert users[-1] in ("airflow", "50000:0")


def copied(dockerfile: str) -> list[str]:
    """The paths that it copies from the build context."""
    lines = re.findall(r"^COPY (.+)$", (REPOSITORY / dockerfile).read_text(), re.MULTILINE)
    words = (word for line in lines if "--from=" not in line for word in line.split()[:-1])
    return [word for word in words if not word.startswith("--")]


@pytest.mark.parametrize("dockerfile", sorted(dockerfiles()))
def test_the_last_stage_of_an_image_has_the_environment_and_nothing_that_made_it(dockerfile: str) -> None:
    *made, last = (REPOSITORY / dockerfile).read_text().split("\nFROM ")[1:]
    stages = {stage.splitlines()[0].partition(" AS ")[2] for stage in made}
    assert "environment" in stages
    assert set(re.findall(r"^COPY --from=(\w+) ", last, re.MULTILINE)) == stages
    steps = "\n".join(line for line in last.splitlines() if not line.startswith("#"))
    assert "uv" not in steps.split()
    assert "requirements" not in steps


#: Airflow's tag has the versions of the lock file in it; no source that we reach states its digest.
BY_TAG = {"AIRFLOW_IMAGE"}


def test_base_images_are_fixed_by_digest() -> None:
    offered = dict(re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", TEXT))
    assert set(offered) == set(re.findall(r"^(\w+_IMAGE)=", (REPOSITORY / ".env.example").read_text(), re.MULTILINE))
    for variable, image in offered.items():
        assert bool(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image)) is (variable not in BY_TAG), image


@pytest.mark.parametrize("dockerfile", sorted(dockerfiles()))
def test_an_image_built_by_hand_has_the_base_of_compose(dockerfile: str) -> None:
    (argument,) = re.findall(r"^ARG (\w+_IMAGE=\S+)$", (REPOSITORY / dockerfile).read_text(), re.MULTILINE)
    assert f"${{{argument.replace('=', ':-')}}}" in TEXT


@pytest.mark.parametrize("folder", ["batch_job", "dags"])
def test_the_cpu_build_of_torch_is_asked_for_by_the_version_that_has_its_hash(folder: str) -> None:
    """uv finds its hash under that version alone: with --require-hashes it refuses the lock file as it is."""
    text = (REPOSITORY / folder / "Dockerfile").read_text()
    assert "sed 's/^torch==[0-9.]*/&+cpu/' /tmp/requirements-runtime.lock >/tmp/cpu.lock" in text
    assert re.search(r"--require-hashes \$TORCH_OPTIONS \\\n +-r /tmp/cpu\.lock\n", text)
    lock = (REPOSITORY / "requirements-runtime.lock").read_text()
    assert len(re.findall(r"^torch==[\d.]+ \\$", lock, re.MULTILINE)) == 1


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


def test_one_command_makes_every_certificate_that_is_mounted(certificates: Path) -> None:
    mounting = [name for name, service in SERVICES.items() if MOUNTED in str(service.get("volumes"))]
    assert {*REPLICAS, *CALL_REDIS, "redis", "prometheus", "backup-redis"} == set(mounting)
    for name in mounting:
        folder = certificates / certificate_of(name)
        assert sorted(it.name for it in folder.iterdir()) == ["ca.pem", "cert.pem", "key.pem"], name
        # Readable by the group of our containers; the authority's key by its owner alone, and in none of these folders.
        assert (folder / "key.pem").stat().st_mode & 0o777 == 0o640
    assert (certificates / "ca.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_have_tls_under_the_name_that_they_advertise(name: str, certificates: Path) -> None:
    environment = SERVICES[name]["environment"]
    assert environment["TANDEM_ADVERTISED_HOST"] == name == certificate_of(name)
    here = {key: str(it).replace(MOUNTED, str(certificates / name)) for key, it in environment.items()}
    tls = settings.load(TlsSettings, here)
    for variable in ("TANDEM_GRPC_ADDRESS", "TANDEM_METRICS_ADDRESS"):
        assert environment[variable].startswith("0.0.0.0:")
        tls.check_bind(variable, environment[variable])
    assert not tls.insecure
    assert CertificateFiles(tls).current().ca == (certificates / "ca.pem").read_bytes()
    _check_names(certificates / name, [name, "localhost"])


def _check_names(folder: Path, names: list[str]) -> None:
    from cryptography import x509

    read = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(found.get_values_for_type(x509.DNSName)) == set(names)
    assert {str(it) for it in found.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1"}
    ssl.create_default_context(cafile=str(folder / "ca.pem")).load_cert_chain(folder / "cert.pem", folder / "key.pem")


def test_redis_listens_with_tls_alone_and_is_called_so(certificates: Path) -> None:
    words = SERVICES["redis"]["command"].split()
    options = {word: value for word, value in itertools.pairwise(words) if word.startswith("--")}
    assert (options["--port"], options["--tls-port"]) == ("0", "6379")
    assert (options["--tls-cert-file"], options["--tls-key-file"]) == (f"{MOUNTED}/cert.pem", f"{MOUNTED}/key.pem")
    _check_names(certificates / certificate_of("redis"), ["redis", "localhost"])
    for name in CALL_REDIS:
        environment = SERVICES[name]["environment"]
        url = urlsplit(re.sub(r"\$\{(\w+)[^}]*\}", r"\1", environment["REDIS_URL"]))
        assert (url.scheme, url.hostname, url.port) == ("rediss", "redis", 6379), name
        assert environment["TANDEM_REDIS_CA"] == f"{MOUNTED}/ca.pem", name


def test_the_router_is_published_with_each_of_its_interfaces() -> None:
    router = SERVICES["router"]
    for variable in ("TANDEM_GRPC_ADDRESS", "TANDEM_HTTP_ADDRESS", "TANDEM_METRICS_ADDRESS"):
        port = router["environment"][variable].rpartition(":")[2]
        assert any(it.endswith(f":{port}") for it in router["ports"]), variable
    head = TEXT.partition("x-confined")[0]
    published = [
        it.split(":")[1]
        for service in SERVICES.values()
        for it in service.get("ports", ())
        if "redis" not in service["image"]
    ]
    assert [port for port in published if port not in head and port not in ("50052", "50053")] == []


def test_health_checks_and_prometheus_trust_the_authority() -> None:
    for name in REPLICAS:
        test = SERVICES[name]["healthcheck"]["test"]
        assert test[:4] == ["CMD", "python", "-m", "realtime_service"]
        parsed = service_command._parser().parse_args(test[4:])
        assert (parsed.command, str(parsed.ca)) == ("describe", f"{MOUNTED}/ca.pem")
        assert SERVICES[name]["environment"]["TANDEM_GRPC_ADDRESS"].endswith(parsed.address.rpartition(":")[2])
    assert SERVICES["redis"]["healthcheck"]["test"][1].startswith(f"redis-cli --tls --cacert {MOUNTED}/ca.pem ")
    (job,) = yaml.safe_load((REPOSITORY / ".deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert (job["scheme"], job["tls_config"]["ca_file"]) == ("https", f"{MOUNTED}/ca.pem")


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build context: the last line that matches it, or a folder above
    it, decides."""
    verdict = False
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            parts = path.split("/")
            places = ["/".join(parts[: n + 1]) for n in range(len(parts))] + (parts if "**/" in line else [])
            if any(fnmatch(place, pattern) for place in places):
                verdict = not line.startswith("!")
    return verdict


def test_the_build_context_is_what_dockerfiles_copy() -> None:
    for dockerfile in dockerfiles():
        for source in copied(dockerfile):
            assert not ignored(source), source
    for path in (
        ".env",
        ".venv/bin/python",
        ".tandem/releases",
        ".git/HEAD",
        ".deploy/certificates/ca.key",
        "tests/a.py",
    ):
        assert ignored(path), path
    assert ignored("shared_model/__pycache__/tls.pyc")
