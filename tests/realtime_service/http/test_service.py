"""HTTP of whole services: the routes of a replica and of a router with tokens and quotas."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from realtime_service.client import Client
from realtime_service.http import pages
from realtime_service.http.routes import ROUTES
from realtime_service.settings import ServiceSettings
from realtime_service.settings.http import HttpSettings
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests.realtime_service import night
from tests.realtime_service.conftest import RunningService, start_service
from tests.realtime_service.process.test_lifecycle import serve_and_fail
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.tokens import key_file, token

pytestmark = pytest.mark.heavy

TEXT = "where is my card"
INFER = {"inputs": [{"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": [["card"], ["where is my card"]]}]}
#: A request of each route; a dictionary is a body.
REQUESTS: dict[tuple[str, str], tuple[str, Any]] = {
    ("POST", "/v1/score"): ("/v1/score", {"texts": [TEXT], "timeout_ms": 5000}),
    ("POST", "/v1/submit"): ("/v1/submit", {"request": {"texts": [TEXT], "request_id": "a/b"}}),
    ("GET", "/v1/results/{request_id:path}"): ("/v1/results/a/b", None),
    ("GET", "/v1/watch"): ("/v1/watch?request_id=a/b&timeout_ms=20000", None),
    ("POST", "/v1/watch"): ("/v1/watch", {"request_ids": ["a/b"]}),
    ("GET", "/v1/lookup"): ("/v1/lookup?id=m-1&id=m-9", None),
    ("POST", "/v1/lookup"): ("/v1/lookup", {"ids": ["m-1"], "top_k": 1}),
    ("GET", "/v1/describe"): ("/v1/describe", None),
    ("GET", "/v2"): ("/v2", None),
    ("GET", "/v2/models/{model}"): ("/v2/models/tiny", None),
    ("GET", "/v2/models/{model}/versions/{version}"): ("/v2/models/tiny/versions/RELEASE", None),
    ("GET", "/v2/models/{model}/ready"): ("/v2/models/tiny/ready", None),
    ("GET", "/v2/models/{model}/versions/{version}/ready"): ("/v2/models/tiny/versions/RELEASE/ready", None),
    ("POST", "/v2/models/{model}/infer"): ("/v2/models/tiny/infer", INFER),
    ("POST", "/v2/models/{model}/versions/{version}/infer"): ("/v2/models/tiny/versions/RELEASE/infer", INFER),
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(url: str, body: Any = None, bearer: str = "") -> Answer:
    headers = {"content-type": "application/json"} if body is not None else {}
    headers |= {"authorization": f"Bearer {bearer}"} if bearer else {}
    asked = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(asked, timeout=30) as page:  # noqa: S310 - of this host
            return Answer(page.status, page.headers, page.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


@dataclass(frozen=True)
class Stage:
    """A replica and a router that require tokens. A caller has 100 texts a second."""

    release: str
    replica: RunningService
    router: RunningService

    def asked(self, at: RunningService, route: tuple[str, str], bearer: str) -> Answer:
        path, body = REQUESTS[route]
        return call(at.http + path.replace("RELEASE", self.release), body, bearer)


@pytest.fixture(scope="module")
def stage(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("http")
    store = Store(folder / "releases")
    release = tiny_releases.seal(store, "tiny")
    pointer.promote(store, None, release.id)
    common = {"TANDEM_AUTH": "required", "TANDEM_TOKEN_KEYS": str(key_file(folder)), "TANDEM_QUOTA": "100"}
    common["TANDEM_HTTP_ADDRESS"] = "127.0.0.1:0"
    with RedisServer(StateSettings(state=folder)) as redis_server:
        common["REDIS_URL"] = redis_server.url
        night.publish(redis_server, release.id, {"m-1": bytes(16)})
        replica = start_service(folder / "replica", Path(store.files.root), **common)
        router = start_service(folder / "router", Path(store.files.root), TANDEM_LANES="none", **common)
        yield Stage(release.id, replica, router)
        assert (router.stop(), replica.stop()) == (0, 0)


def test_there_is_a_request_of_each_route() -> None:
    assert REQUESTS.keys() == {(route.verb, route.path) for route in ROUTES}


@pytest.mark.parametrize("at", ["replica", "router"])
def test_every_route_answers_with_a_token_and_none_without(stage: Stage, at: str) -> None:
    service: RunningService = getattr(stage, at)
    for route in REQUESTS:
        for bearer in ("", "rubbish"):
            refused = stage.asked(service, route, bearer)
            assert (refused.status, refused.json["code"]) == (401, "UNAUTHENTICATED"), route
        answered = stage.asked(service, route, token(sub=at, sees_precomputed=True))
        assert answered.status == 200, (route, answered.body)
        denied = stage.asked(service, route, token(sub="b", roles=["replica"]))
        asks_only = route[1].startswith(("/v1/describe", "/v2")) and route[0] == "GET"
        assert denied.status == (200 if asks_only else 403), route


@pytest.mark.parametrize("at", ["replica", "router"])
def test_an_answer_is_that_of_grpc(stage: Stage, at: str) -> None:
    service: RunningService = getattr(stage, at)
    with Client(service.address, token=token(sub="same")) as client:
        expected = client.score(TEXT, timeout_ms=5000)
    found = call(f"{service.http}/v1/score", {"texts": [TEXT], "timeout_ms": 5000}, token(sub="same")).json
    assert (found["release"], found["model"]) == (expected.release, "tiny")
    labels = [(label["name"], pytest.approx(label["score"], abs=1e-6)) for label in found["results"][0]["labels"]]
    assert [(label.name, label.score) for label in expected.results[0].labels] == labels


@pytest.mark.parametrize("at", ["replica", "router"])
def test_open_inference_answers_in_tensors(stage: Stage, at: str) -> None:
    service: RunningService = getattr(stage, at)
    found = stage.asked(service, ("POST", "/v2/models/{model}/infer"), token(sub="tensors")).json
    assert (found["model_name"], found["model_version"]) == ("tiny", stage.release)
    outputs = {output["name"]: output for output in found["outputs"]}
    assert outputs["scores"]["shape"] == [2, 8]
    assert sum(outputs["scores"]["data"]) == pytest.approx(2.0, abs=1e-4)
    assert outputs["label"]["data"] == ["label-0", "label-0"]
    assert found["parameters"]["release"] == stage.release
    wrong = {"inputs": [{**INFER["inputs"][0], "shape": [3]}]}
    refused = call(f"{service.http}/v2/models/tiny/infer", wrong, token(sub="tensors"))
    assert (refused.status, refused.json["error"]) == (400, "text: holds fewer texts than the 3 of its shape")
    missing = call(f"{service.http}/v2/models/none", None, token(sub="tensors"))
    assert missing.status == 404
    assert "model_name: 'none' is not served here" in missing.json["error"]
    assert call(f"{service.http}/v2/models/none/ready", None, token(sub="tensors")).status == 503


@pytest.mark.parametrize("at", ["replica", "router"])
def test_a_message_is_looked_up_by_its_id_with_permission(stage: Stage, at: str) -> None:
    service: RunningService = getattr(stage, at)
    seeing = token(sub="eye", sees_precomputed=True)
    found = stage.asked(service, ("GET", "/v1/lookup"), seeing).json
    assert (found["release"], found["ds"], found["model"]) == (stage.release, "2026-01-14", "tiny")
    assert [it["id"] for it in found["results"]] == ["m-1", "m-9"]
    assert found["results"][0]["result"]["labels"][0] == {"name": "label-2", "score": 0.75}
    assert "result" not in found["results"][1]
    refused = stage.asked(service, ("GET", "/v1/lookup"), token(sub="eye"))
    assert (refused.status, refused.json["code"]) == (403, "PERMISSION_DENIED")
    for wrong, said in (("", "ids: holds 0 ids"), ("?id=", "ids[0]: is empty"), ("?id=a&model=none", "model:")):
        answer = call(f"{service.http}/v1/lookup{wrong}", None, seeing)
        assert (answer.status, answer.json["error"][: len(said)]) == (400, said)


def test_a_result_is_its_submitters(stage: Stage) -> None:
    body = {"request": {"texts": [TEXT], "request_id": "mine"}}
    assert call(f"{stage.replica.http}/v1/submit", body, token(sub="one")).status == 200
    changed = {"request": {"texts": ["card"], "request_id": "mine"}}
    assert call(f"{stage.replica.http}/v1/submit", changed, token(sub="one")).status == 409
    assert call(f"{stage.replica.http}/v1/results/mine", None, token(sub="two")).status == 404
    events = call(f"{stage.replica.http}/v1/watch?request_id=mine", None, token(sub="one")).body.decode()
    assert re.findall("^event: (.*)$", events, re.M) == ["result", "end"]
    assert '"state":"PUBLISHED"' in events


def test_a_caller_over_its_quota_is_429_with_a_hint_on_either_interface(stage: Stage) -> None:
    for path, body in (("score", {"texts": [TEXT] * 64}), ("lookup", {"ids": ["m-1"] * 64})):
        greedy = token(sub=f"greedy {path}", sees_precomputed=True)
        answers = [call(f"{stage.replica.http}/v1/{path}", body, greedy) for _ in range(20)]
        [refused, *_] = [it for it in answers if it.status != 200]
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json["retry_after_ms"] > 0
    assert call(f"{stage.replica.http}/v1/score", {"texts": [TEXT]}, token(sub="modest")).status == 200


def test_pages_need_no_token_and_nothing_else(stage: Stage) -> None:
    assert call(f"{stage.replica.http}/v2/health/live").json == {"live": True}
    several = (("?lane=latency&lane=dynamic", True), ("?lane=deferred&lane=latency", False))
    for query, ready in (("", True), ("?lane=latency", True), ("?lane=deferred", False), *several):
        answer = call(f"{stage.router.http}/v2/health/ready{query}")
        assert (answer.status, answer.json) == (200 if ready else 503, {"ready": ready}), query
    document = call(f"{stage.replica.http}/openapi.json").json
    assert document == json.loads(json.dumps(pages.openapi()))
    named = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    assert {(route.verb, route.path.replace(":path", "")) for route in ROUTES} < named
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= document["components"]["schemas"].keys()
    page = call(f"{stage.replica.http}/docs")
    text = page.body.decode()
    assert all(path in text for path in document["paths"])
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//|<script|@import|url\(", text)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_an_address_of_other_hosts_is_refused_without_tls(tmp_path: Path) -> None:
    line = serve_and_fail(tmp_path, tmp_path, TANDEM_HTTP_ADDRESS="0.0.0.0:0")
    assert line.startswith("realtime_service serve: TANDEM_HTTP_ADDRESS=0.0.0.0:0: other hosts reach this address")


def test_an_address_of_other_hosts_makes_no_caller_local() -> None:
    assert ServiceSettings().local
    assert not ServiceSettings(http=HttpSettings(address="10.0.0.7:8080")).local
