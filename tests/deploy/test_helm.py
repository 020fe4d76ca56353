"""The Helm chart: it renders, fits Kubernetes' schemas, and sets, asks for and counts on what Tandem has."""

import contextlib
import copy
import functools
import itertools
import re
import ssl
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tandem_stack import chart
from tandem_stack.checks import Problem

from realtime_service.http import pages
from realtime_service.process.server import DRAIN_SECONDS, LAME_DUCK_SECONDS
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry.metrics import Metrics
from shared_model import settings, variables
from shared_model.settings import StateSettings
from shared_model.tls import CertificateFiles, TlsSettings
from tests.certified import certified
from tests.debian import program

pytestmark = pytest.mark.heavy

DEPLOY = chart.ROOT / ".deploy"
COMPOSE = yaml.safe_load((chart.ROOT / "docker-compose.yml").read_text())["services"]
EXAMPLES = [path.stem for path in chart.EXAMPLES]
TRIAL = chart.CHART / "examples" / "trial.yaml"
#: The latency lane follows the deferred backlog, too.
BACKLOG = (
    "tls.mode=none,redis.passwordsSecret=p,"
    "lanes.latency.autoscaling.by=keda,lanes.latency.autoscaling.backlogPerReplica=9"
)
each = pytest.mark.parametrize("example", EXAMPLES)


@functools.cache
def manifests(example: str) -> list[dict[str, Any]]:
    return chart.rendered("--values", str(chart.CHART / "examples" / f"{example}.yaml"))


def of_kind(example: str, kind: str) -> dict[str, dict[str, Any]]:
    """By name."""
    return {it["metadata"]["name"]: it for it in manifests(example) if it["kind"] == kind}


def pods(example: str) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Labels and specification of each template of a pod."""
    for kind in ("Deployment", "StatefulSet", "Job"):
        for it in of_kind(example, kind).values():
            template = it["spec"]["template"]
            yield template["metadata"]["labels"], template["spec"]


def containers(example: str) -> Iterator[dict[str, Any]]:
    for _, spec in pods(example):
        yield from (*spec.get("initContainers", ()), *spec["containers"])


def replicas(example: str) -> dict[str, dict[str, Any]]:
    """The container of each Deployment of the service."""
    found = {
        name: it["spec"]["template"]["spec"]["containers"][0] for name, it in of_kind(example, "Deployment").items()
    }
    return {name: it for name, it in found.items() if it["name"] == "service"}


def environment(container: dict[str, Any]) -> dict[str, str]:
    """The variables of a pod, with a word in place of those that the cluster fills in."""
    return {it["name"]: str(it.get("value", "filled-in")) for it in container["env"]}


def test_the_examples_fit_the_schemas() -> None:
    assert chart.check() == []
    kinds = {it["kind"] for example in EXAMPLES for it in manifests(example)}
    assert kinds == {
        "Deployment", "StatefulSet", "Job", "Service", "ConfigMap", "PersistentVolumeClaim", "PodDisruptionBudget",
        "HorizontalPodAutoscaler", "ScaledObject", "Certificate", "ServiceMonitor", "PrometheusRule",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "prestop"), {}),
        ("Deployment", ("spec", "replicas"), "two"),
        ("Certificate", ("spec", "dnsName"), ["router"]),
        ("ScaledObject", ("spec", "triggers", 0, "metadata", "threshold"), 0.5),
        ("ServiceMonitor", ("spec", "endpoints", 0, "tlsconfig"), {}),
    ],
)
def test_control_a_wrong_field_is_found(kind: str, path: tuple[Any, ...], value: Any) -> None:
    manifest = copy.deepcopy(next(iter(of_kind("production", kind).values())))
    assert list(chart.complaints(manifest)) == []
    *parents, last = path
    functools.reduce(lambda found, name: found[name], parents, manifest)[last] = value
    (complaint,) = chart.complaints(manifest)
    assert complaint.startswith(f"{kind} {manifest['metadata']['name']}: ")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("redis.passwordsSecret=p", "tls.issuer.name: name an issuer"),
        ("redis.passwordsSecret=p,tls.mode=some", 'tls.mode: is "some"'),
        ("tls.mode=none", "redis.passwordsSecret: name the Secret"),
        ("tls.mode=none,tls.mutual=true,redis.passwordsSecret=p", "tls.mutual: needs certificates"),
        (
            "tls.mode=secrets,tls.serviceSecret=s,tls.redisSecret=r,tls.mutual=true,redis.passwordsSecret=p",
            "tls.clientSecret: name the Secret",
        ),
        ("tls.mode=none,redis.bundled=false", "redis.urlSecret: name the Secret"),
        ("tls.mode=none,redis.passwordsSecret=p,airflow.enabled=true", "airflow.secret: name the Secret"),
        ("tls.mode=none,redis.passwordsSecret=p,lanes.latency.autoscaling.by=cron", "lanes.latency.autoscaling.by"),
        (f"{BACKLOG},lanes.latency.autoscaling.backlogDueSeconds=", "lanes.latency.autoscaling.backlogDueSeconds: say"),
    ],
)  # fmt: skip
def test_a_value_that_is_missing_or_wrong_is_named(values: str, said: str) -> None:
    with pytest.raises(Problem, match=re.escape(said)):
        chart.rendered("--set", values)


@each
def test_each_variable_is_a_setting(example: str) -> None:
    named = {it for container in containers(example) for it in environment(container) if it.startswith("TANDEM_")}
    assert named
    assert named <= variables.KNOWN


@each
def test_a_replica_starts_with_its_settings(example: str) -> None:
    for name, container in replicas(example).items():
        given = environment(container)
        read, tls = settings.load(ServiceSettings, given), settings.load(TlsSettings, given)
        settings.load(StateSettings, given)
        for variable, address in (
            ("TANDEM_GRPC_ADDRESS", read.grpc_address),
            ("TANDEM_METRICS_ADDRESS", read.metrics_address),
            ("TANDEM_HTTP_ADDRESS", read.http.address),
        ):
            tls.check_bind(variable, address)
            assert int(address.rpartition(":")[2]) in {it["containerPort"] for it in container["ports"]}
        (advertised,) = [it for it in container["env"] if it["name"] == "TANDEM_ADVERTISED_HOST"]
        assert advertised["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert read.served or name.endswith("-router")
    assert len(replicas(example)) == 3


@each
def test_probes_ask_what_a_replica_answers_of_all_its_lanes(example: str) -> None:
    paths = pages.openapi()["paths"]
    for container in replicas(example).values():
        given = environment(container)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert "get" in paths[_asked(container, probe).partition("?")[0]]
        assert _asked(container, "livenessProbe") == "/v2/health/live"
        served = [it for it in given["TANDEM_LANES"].split(",") if it != "none"]
        for probe in ("startupProbe", "readinessProbe"):
            asked = urllib.parse.urlsplit(_asked(container, probe))
            assert (asked.path, urllib.parse.parse_qs(asked.query).get("lane", [])) == ("/v2/health/ready", served)


def _asked(container: dict[str, Any], probe: str) -> str:
    """The path that a probe asks for: the cluster itself, or a program where a certificate has to be shown."""
    given = environment(container)
    if "TANDEM_TLS_CLIENT_CA" in given:
        command = container[probe]["exec"]["command"]
        assert command[:2] == ["python", "-c"]
        return str(command[-1])
    asked = container[probe]["httpGet"]
    assert asked["port"] == "http"
    assert asked["scheme"] == ("HTTPS" if "TANDEM_TLS_CERT" in given else "HTTP")
    return str(asked["path"])


@contextlib.contextmanager
def _listening(context: ssl.SSLContext) -> Iterator[str]:
    """The address of a server that answers those it lets in."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_probe_shows_a_certificate_where_one_is_needed(tmp_path: Path) -> None:
    own = certified(tmp_path)
    context = CertificateFiles(own.settings(mutual=True)).current().context
    assert context
    container, *_ = replicas("mutual").values()
    _, option, program, path = container["readinessProbe"]["exec"]["command"]
    for name, file in (("ca.crt", own.ca), ("tls.crt", own.cert), ("tls.key", own.key)):
        program = program.replace(f"/run/tandem/tls/{name}", str(file))
    without = re.sub(r"tls.load_cert_chain\(.*?\);", "", program)
    assert without != program
    with _listening(context) as address:
        for asked, succeeds in ((program, True), (without, False)):
            command = [sys.executable, option, asked.replace("127.0.0.1:8080", address), path]
            ran = subprocess.run(command, check=False, capture_output=True, text=True)
            assert (ran.returncode == 0) is succeeds, ran.stderr


def test_with_mutual_tls_everything_asks_for_certificates_and_shows_one() -> None:
    names = {it["spec"]["secretName"]: it["spec"] for it in of_kind("mutual", "Certificate").values()}
    assert {"server auth", "client auth"} <= set(names["trial-tandem-client-tls"]["usages"])
    (redis,) = of_kind("mutual", "StatefulSet").values()
    command = redis["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--tls-auth-clients") + 1] == "yes"
    for name, container in replicas("mutual").items():
        assert environment(container)["TANDEM_TLS_CLIENT_CA"] == "/run/tandem/tls/ca.crt", name
    for _, spec in pods("mutual"):
        secrets = {it["name"]: it["secret"]["secretName"] for it in spec["volumes"] if "secret" in it}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            if "REDIS_URL" in (given := environment(container)):
                state = settings.load(StateSettings, given)
                (mounted,) = [
                    it["name"] for it in container["volumeMounts"] if it["mountPath"] == "/run/tandem/client-tls"
                ]
                assert (state.redis_cert, state.redis_key) == tuple(
                    f"/run/tandem/client-tls/tls.{it}" for it in ("crt", "key")
                )
                assert secrets[mounted] == "trial-tandem-client-tls"
    (monitor,) = of_kind("mutual", "ServiceMonitor").values()
    tls = monitor["spec"]["endpoints"][0]["tlsConfig"]
    assert tls["cert"]["secret"]["name"] == tls["keySecret"]["name"] == "trial-tandem-client-tls"
    # Only there.
    assert not any("client-tls" in str(it) or "TLS_CLIENT_CA" in str(it) for it in manifests("production"))


@each
def test_a_pod_that_ends_has_the_time_to_drain(example: str) -> None:
    for name in replicas(example):
        spec = of_kind(example, "Deployment")[name]["spec"]
        assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        pod = spec["template"]["spec"]
        sleep, seconds = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert sleep == "sleep"
        # And some for what is closed after the last call.
        assert float(seconds) + LAME_DUCK_SECONDS + DRAIN_SECONDS + 5 <= pod["terminationGracePeriodSeconds"]


@each
def test_selectors_find_their_pods(example: str) -> None:
    labels = [it for it, _ in pods(example)]
    for kind, path in (("Service", ("selector",)), ("PodDisruptionBudget", ("selector", "matchLabels"))):
        for name, manifest in of_kind(example, kind).items():
            wanted = functools.reduce(lambda found, part: found[part], path, manifest["spec"])
            assert [it for it in labels if wanted.items() <= it.items()], (kind, name)
    assert set(of_kind(example, "PodDisruptionBudget")) == set(replicas(example))
    for budget in of_kind(example, "PodDisruptionBudget").values():
        # A minimum would keep the node of a single replica from being drained.
        assert budget["spec"].keys() == {"maxUnavailable", "selector"}
        assert budget["spec"]["maxUnavailable"] >= 1
    ports = {port["name"] for container in containers(example) for port in container.get("ports", ())}
    targets = {it["targetPort"] for service in of_kind(example, "Service").values() for it in service["spec"]["ports"]}
    assert {it for it in targets if isinstance(it, str)} <= ports


def test_a_lane_without_a_bound_of_disruption_can_be_drained() -> None:
    lane = '{"serves": "throughput", "replicas": 1, "resources": {}, "settings": {}, "autoscaling": {"by": ""}}'
    added = chart.rendered(
        "--values", str(TRIAL), "--set-json", f"lanes.added={lane}", "--set", "lanes.latency.maxUnavailable=2"
    )
    bounds = {
        it["metadata"]["labels"]["app.kubernetes.io/component"]: it["spec"]["maxUnavailable"]
        for it in added
        if it["kind"] == "PodDisruptionBudget"
    }
    assert bounds == {"router": 1, "latency": 2, "throughput": 1, "added": 1}


@each
def test_images_are_those_of_compose_and_pods_are_confined(example: str) -> None:
    built = {service["image"] for service in COMPOSE.values() if "build" in service}
    for container in containers(example):
        image = container["image"]
        if container["name"] == "redis":
            assert image in COMPOSE["redis"]["image"]
        else:
            assert re.sub(r"^registry\.example\.com/scoring/|:[\w.]+$", "", image) in built
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
    for _, spec in pods(example):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        volumes = {it["name"] for it in spec["volumes"]}
        volumes |= {it["metadata"]["name"] for it in _claims(example)}
        for container in spec["containers"]:
            assert {it["name"] for it in container["volumeMounts"]} <= volumes


def _claims(example: str) -> list[dict[str, Any]]:
    return [claim for it in of_kind(example, "StatefulSet").values() for claim in it["spec"]["volumeClaimTemplates"]]


def test_certificates_carry_the_names_that_are_asked_for() -> None:
    certificates = of_kind("production", "Certificate")
    names = {name: it["spec"]["dnsNames"] for name, it in certificates.items()}
    secrets = {it["spec"]["secretName"] for it in certificates.values()}
    for container in replicas("production").values():
        given = environment(container)
        assert given["TANDEM_TLS_NAME"] in names["trial-tandem-service"]
        assert (
            re.search(r"^rediss://service:\$\(REDIS_PASSWORD\)@([\w-]+):6379/0$", given["REDIS_URL"])[1]
            in (  # type: ignore[index]
                names["trial-tandem-redis"]
            )
        )
    (monitor,) = of_kind("production", "ServiceMonitor").values()
    tls = monitor["spec"]["endpoints"][0]["tlsConfig"]
    assert tls["serverName"] in names["trial-tandem-service"]
    mounted = {it["secret"]["secretName"] for _, spec in pods("production") for it in spec["volumes"] if "secret" in it}
    assert secrets <= mounted
    services = of_kind("production", "Service")
    reached = {"trial-tandem", "trial-tandem-routers", "trial-tandem-board", "trial-tandem-redis"}
    assert reached <= services.keys()
    assert reached <= set(itertools.chain(*names.values()))


@each
def test_only_the_pod_that_builds_releases_has_the_operators_key(example: str) -> None:
    for labels, spec in pods(example):
        mounted = {it["secret"]["secretName"] for it in spec["volumes"] if "secret" in it}
        if "tandem-operator-keys" in mounted:
            assert labels["app.kubernetes.io/component"] == "release"
    if example == "production":
        assert any("tandem-operator-keys" in str(spec) for _, spec in pods(example))


def test_redis_and_alerts_are_those_of_the_repository() -> None:
    (configuration,) = of_kind("production", "ConfigMap").values()
    for name, text in configuration["data"].items():
        assert text.strip() == (DEPLOY / "redis" / name).read_text().strip(), name
    (redis,) = of_kind("production", "StatefulSet").values()
    assert redis["spec"]["template"]["spec"]["containers"][0]["command"][1] == "/etc/tandem/start.sh"
    for name, manifest in of_kind("production", "PrometheusRule").items():
        text = (DEPLOY / "prometheus" / f"{name.rpartition('-')[2]}.yml").read_text()
        linked = text.replace("RUNBOOK.md#", "https://git.example.com/tandem/.deploy/RUNBOOK.md#")
        assert linked != text
        assert manifest["spec"] == yaml.safe_load(linked)


def queries() -> list[str]:
    triggers = [it["spec"]["triggers"] for it in of_kind("production", "ScaledObject").values()]
    return [trigger["metadata"]["query"] for each_of in triggers for trigger in each_of]


def test_autoscalers_follow_metrics_that_replicas_have(tmp_path: Path) -> None:
    adapter = yaml.safe_load((chart.CHART / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0])
    known = {family.name for family in Metrics([]).registry.collect()}
    scalers = of_kind("external", "HorizontalPodAutoscaler")
    latency, throughput = (scalers[f"trial-tandem-{it}"]["spec"]["metrics"] for it in ("latency", "throughput"))
    (metric,) = latency
    named = {metric["pods"]["metric"]["name"], *re.findall(r"tandem_\w+", " ".join(queries()))}
    assert named == {
        "tandem_predicted_lateness_ratio",
        "tandem_deferred_waiting",
        "tandem_deferred_deadline_timestamp_seconds",
    }
    assert named <= known
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "500m"}
    _, due = throughput
    assert due["external"]["target"] == {"type": "AverageValue", "averageValue": "1000"}
    (rule,) = adapter["externalRules"]
    assert rule["name"]["as"] == due["external"]["metric"]["name"]
    # The same as KEDA asks for.
    asked = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="scoring"')
    assert asked in queries()
    rules = [{"record": f"scaling:{number}", "expr": query} for number, query in enumerate(queries())]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "scaling", "rules": rules}]}))
    ran = subprocess.run(
        [program("prometheus", "promtool"), "check", "rules", tmp_path / "queries.yml"],
        check=False,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr
    for example in EXAMPLES:
        for name, manifest in of_kind(example, "Deployment").items():
            scaled = {*of_kind(example, "ScaledObject"), *of_kind(example, "HorizontalPodAutoscaler")}
            assert ("replicas" in manifest["spec"]) is (name not in scaled), name


def test_any_lane_can_follow_the_backlog() -> None:
    (scaled,) = [it for it in chart.rendered("--set", BACKLOG) if it["kind"] == "ScaledObject"]
    _, backlog = scaled["spec"]["triggers"]
    assert scaled["metadata"]["name"] == "trial-tandem-latency"
    assert backlog["metadata"]["threshold"] == "9"
    # In the production values the throughput lane alone follows it.
    assert backlog["metadata"]["query"] in queries()


def test_airflow_has_the_variables_of_compose() -> None:
    ours = of_kind("production", "Deployment")["trial-tandem-airflow-scheduler"]["spec"]["template"]["spec"]
    given, composed = environment(ours["containers"][0]), COMPOSE["airflow-scheduler"]["environment"]
    secret = {"AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY"}
    secret |= {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"}
    set_here = {it for it in given if it.startswith("AIRFLOW__")}
    # Off, unless `airflow.settings` say otherwise: a variable may be given once.
    set_there = {it for it in composed if it.startswith("AIRFLOW__")} - {"AIRFLOW__TRACES__OTEL_ON"}
    assert set_here | secret == set_there
    same = set_here - {"AIRFLOW__CORE__EXECUTION_API_SERVER_URL"} | {"OTEL_TRACES_EXPORTER"}
    assert {it: given[it] for it in same} == {it: composed[it] for it in same}


def test_the_board_can_be_reached_framed_and_linked_to() -> None:
    for example in EXAMPLES:
        board = of_kind(example, "Service")["trial-tandem-board"]["spec"]
        assert board["ports"] == [{"name": "metrics", "port": 9464, "targetPort": "metrics"}]
        assert board["publishNotReadyAddresses"]
    for container in replicas("production").values():
        read = settings.load(ServiceSettings, {"TANDEM_BOARD_FRAMES": environment(container)["TANDEM_BOARD_FRAMES"]})
        assert read.board.frames == "https://airflow.example.com"
    airflow = of_kind("production", "Deployment")["trial-tandem-airflow-scheduler"]["spec"]["template"]["spec"]
    given = environment(airflow["containers"][0])
    assert given["TANDEM_SLA_BOARD_URL"] == "https://tandem-board.example.com/board"


def test_only_calls_are_open_to_callers_outside_the_cluster() -> None:
    found = chart.rendered("--values", str(TRIAL), "--set", "router.serviceType=LoadBalancer")
    services = [it["spec"] for it in found if it["kind"] == "Service"]
    (outside,) = [it for it in services if it.get("type", "ClusterIP") != "ClusterIP"]
    assert {it["targetPort"] for it in outside["ports"]} == {"grpc", "http"}
