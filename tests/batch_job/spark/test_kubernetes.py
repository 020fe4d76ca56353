"""A night on Spark's Kubernetes scheduler, with the settings of the manifest and the image's entry point. Its API is as
much of Kubernetes as Spark asks for; pods are processes of this host."""

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from tandem_stack import chart

from batch_job.settings import NightlySettings
from shared_model import settings, variables
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, Cli, message, write_day
from tests.batch_job.spark import kubernetes_api

MANIFESTS = {(it["kind"], it["metadata"]["name"]): it for it in chart.nights()}
POD = MANIFESTS["CronJob", "tandem-night"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
DRIVER = POD["containers"][0]
VARIABLES = {it["name"]: it.get("value", "") for it in DRIVER["env"]}
#: Variables that the cluster fills in.
FILLED = {"POD_NAME": "night-0", "POD_NAMESPACE": "scoring", "POD_IP": "127.0.0.1"}


def allowed() -> set[tuple[str, str]]:
    """Verb and kind of what the driver may do."""
    rules = MANIFESTS["Role", "tandem-driver"]["rules"]
    return {(verb, kind) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]}


def test_the_driver_is_started_with_settings_and_as_an_account_that_exist() -> None:
    assert {name for name in VARIABLES if name.startswith("TANDEM_")} <= variables.KNOWN
    settings.load(NightlySettings, VARIABLES)
    assert POD["serviceAccountName"] in {name for kind, name in MANIFESTS if kind == "ServiceAccount"}
    conf = dict(pair.split("=", 1) for pair in VARIABLES["TANDEM_SPARK_CONF"].split())
    assert conf["spark.kubernetes.container.image"] == DRIVER["image"]
    assert ("ServiceAccount", conf["spark.kubernetes.authenticate.executor.serviceAccountName"]) in MANIFESTS
    [mount] = [it for it in DRIVER["volumeMounts"] if it["name"] == "spark"]
    folder, _, name = conf["spark.kubernetes.executor.podTemplateFile"].rpartition("/")
    assert folder == mount["mountPath"]
    assert name in MANIFESTS["ConfigMap", "tandem-spark"]["data"]


@pytest.mark.proof
def test_a_night_runs_on_executors_that_are_pods(
    state: StateSettings, release: Release, environment: dict[str, str], cli: Cli, tmp_path: Path
) -> None:
    write_day(state, [message(number, f"my card number {number % 40} has not arrived") for number in range(200)])
    template = tmp_path / "executor.yaml"
    template.write_text(yaml.safe_dump(MANIFESTS["Pod", "executor"]))
    filled = re.sub(r"\$\((\w+)\)", lambda found: FILLED[found[1]], VARIABLES["TANDEM_SPARK_CONF"])
    smaller = f"spark.kubernetes.executor.podTemplateFile={template} spark.executor.instances=2 spark.executor.cores=1"
    with kubernetes_api.serving(FILLED["POD_NAMESPACE"], FILLED["POD_NAME"], tmp_path) as cluster:
        environment.update(
            TANDEM_SPARK_MASTER=cluster.url, TANDEM_SPARK_CONF=f"{filled} {smaller} spark.executor.memory=512m"
        )
        for step in ("plan", "score"):
            done = cli(step, "--ds", DAY)
            said = "".join(log.read_text()[-2000:] for log in tmp_path.glob("*.log"))
            assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-3000:]}{said}"
    assert "200 rows committed" in done.stdout, done.stdout
    assert cluster.asked <= allowed()
    assert len(cluster.executors) == 2
    for pod in cluster.executors:
        [container] = pod["spec"]["containers"]
        assert (container["image"], container["args"]) == (DRIVER["image"], ["executor"])
        given = {it["name"]: it.get("value", "") for it in container["env"]}
        assert (given["REDIS_URL"], given["TANDEM_REDIS_URL"]) == ("", "")
        assert given["_SPARK_AUTH_SECRET"]
        assert container["envFrom"] == MANIFESTS["Pod", "executor"]["spec"]["containers"][0]["envFrom"]
        assert pod["spec"]["serviceAccountName"] == "tandem-executor"
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        [owner] = pod["metadata"]["ownerReferences"]
        assert owner["name"] == FILLED["POD_NAME"]
