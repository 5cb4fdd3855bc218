"""The real kubectl against an HTTP server that answers as an API server would."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from kubectl_gpujob.cluster import connect
from kubectl_gpujob.errors import NotCheckedError, NotFoundError, UserError
from kubectl_gpujob.kubectl import Kubectl, KubectlError, Target, failure_of, refusal_of
from kubectl_gpujob.listing import read_all
from tests.harness.cli_jobs import manifest

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kubectl_in_path")]

PREFIX = "/apis/gpujob.dev/v1alpha1"


@dataclass
class Answers:
    """What the server says, by path and page, and what it was asked."""

    pages: dict[tuple[str, str], tuple[int, Any]] = field(
        default_factory=dict[tuple[str, str], tuple[int, Any]]
    )
    asked: list[str] = field(default_factory=list[str])

    def add(self, path: str, body: Any, status: int = 200, page: str = "") -> None:
        path = path if path.startswith("/api/") else PREFIX + path
        self.pages[(path, page)] = (status, body)


@dataclass(frozen=True)
class Server:
    answers: Answers
    kubeconfig: Path


def handler(answers: Answers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            page = parse_qs(url.query).get("continue", [""])[0]
            answers.asked.append(url.path)
            status, body = answers.pages.get((url.path, page), (404, {"kind": "Status"}))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
            """Tests are quiet."""

    return Handler


def write_kubeconfig(path: Path, port: int) -> Path:
    def context(name: str, namespace: str) -> dict[str, Any]:
        return {"name": name, "context": {"cluster": "c", "user": "u", "namespace": namespace}}

    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [context("lab", "vision"), context("prod", "text")],
        "current-context": "lab",
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    answers = Answers()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(answers)) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Server(answers, write_kubeconfig(tmp_path / "config", http.server_port))
        http.shutdown()
        thread.join()


def test_a_job_is_read_from_the_contexts_namespace(server: Server) -> None:
    server.answers.add("/namespaces/vision/gpujobs/resnet50", manifest())
    found = connect(Target(server.kubeconfig)).job("resnet50")
    assert (found.metadata.namespace, found.metadata.name) == ("vision", "resnet50")


def test_another_context_has_its_own_namespace(server: Server) -> None:
    assert connect(Target(server.kubeconfig, context="prod")).namespace == "text"


def test_the_flag_wins_over_the_context(server: Server) -> None:
    assert connect(Target(server.kubeconfig, namespace="mine")).namespace == "mine"


def test_an_unknown_context_is_named(server: Server) -> None:
    with pytest.raises(UserError, match="context moon"):
        connect(Target(server.kubeconfig, context="moon")).job("x")


def test_a_list_is_read_page_by_page(server: Server) -> None:
    first = {"items": [manifest("a")], "metadata": {"continue": "next"}}
    server.answers.add("/gpujobs", first)
    server.answers.add("/gpujobs", {"items": [manifest("b")], "metadata": {}}, page="next")
    found = connect(Target(server.kubeconfig)).jobs(all_namespaces=True)
    assert [job.metadata.name for job in found] == ["a", "b"]


def test_a_list_of_one_namespace_asks_for_it_alone(server: Server) -> None:
    server.answers.add("/namespaces/vision/gpujobs", {"items": [manifest("a")], "metadata": {}})
    found = connect(Target(server.kubeconfig)).jobs(all_namespaces=False)
    assert [job.metadata.name for job in found] == ["a"]
    assert server.answers.asked == [f"{PREFIX}/namespaces/vision/gpujobs"]


def test_an_unreadable_job_does_not_hide_the_others(server: Server) -> None:
    broken = manifest("broken", spec={"workers": -1})
    server.answers.add("/gpujobs", {"items": [broken, manifest("a")], "metadata": {}})
    found = connect(Target(server.kubeconfig)).jobs(all_namespaces=True)
    assert [job.metadata.name for job in found] == ["a"]


def test_an_unreadable_job_names_the_field(server: Server) -> None:
    broken = manifest("broken", spec={"workers": -1})
    server.answers.add("/namespaces/vision/gpujobs/broken", broken)
    with pytest.raises(UserError, match=r"cannot be read: spec\.workers"):
        connect(Target(server.kubeconfig)).job("broken")


def status_of(code: int, reason: str, message: str) -> dict[str, Any]:
    """An error as an API server answers it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (401, "Unauthorized", "check your kubeconfig credentials"),
        (403, "Forbidden", "may not use gpujob x in namespace vision"),
        (404, "NotFound", "not found: gpujob x in namespace vision"),
        (503, "ServiceUnavailable", "refuses gpujob x in namespace vision: the words"),
    ],
)
def test_refusals_say_what_to_do(server: Server, status: int, reason: str, expected: str) -> None:
    answer = status_of(status, reason, "the words")
    server.answers.add("/namespaces/vision/gpujobs/x", answer, status=status)
    with pytest.raises(UserError, match=expected) as raised:
        connect(Target(server.kubeconfig)).job("x")
    assert isinstance(raised.value, NotFoundError) is (status == 404)


@pytest.mark.parametrize(
    ("asked", "held", "expected"),
    [
        ("resnet5", [("resnet50", "vision")], "; did you mean resnet50?"),
        ("train", [("train-x7k2p", "vision")], "; did you mean train-x7k2p?"),
        ("bert", [("bert", "text")], "; there is one in namespace text"),
        ("bert", [("resnet50", "vision")], ""),
    ],
)
def test_a_name_like_it_is_named(
    server: Server, asked: str, held: list[tuple[str, str]], expected: str
) -> None:
    items = [manifest(name, namespace=namespace) for name, namespace in held]
    here = [one for one in items if one["metadata"]["namespace"] == "vision"]
    # An API server lists those of the name that was asked for.
    alike = [one for one in items if one["metadata"]["name"] == asked]
    answer = status_of(404, "NotFound", "the words")
    server.answers.add(f"/namespaces/vision/gpujobs/{asked}", answer, status=404)
    server.answers.add("/namespaces/vision/gpujobs", {"items": here, "metadata": {}})
    server.answers.add("/gpujobs", {"items": alike, "metadata": {}})
    with pytest.raises(NotFoundError) as raised:
        connect(Target(server.kubeconfig)).job(asked)
    assert str(raised.value) == f"not found: gpujob {asked} in namespace vision{expected}"


def test_an_api_server_without_the_crds_is_told_from_a_job_that_is_missing(server: Server) -> None:
    words = "the server could not find the requested resource"
    answer = status_of(404, "NotFound", words)
    server.answers.add("/namespaces/vision/gpujobs/x", answer, status=404)
    with pytest.raises(
        UserError, match=r"is GPUJob installed\? kubectl get crd gpujobs\.gpujob\.dev"
    ):
        connect(Target(server.kubeconfig)).job("x")


def test_a_missing_kubectl_is_told_with_where_it_comes_from(server: Server) -> None:
    with pytest.raises(UserError, match="kubectl-x is not installed or not in PATH: https://"):
        Kubectl(Target(server.kubeconfig), "kubectl-x").get("gpujobs", f"{PREFIX}/gpujobs")


def test_a_log_is_read_while_it_comes(server: Server) -> None:
    path = "/api/v1/namespaces/vision/pods/a-1-0/log"
    server.answers.add(path, "one line")
    with connect(Target(server.kubeconfig)).log("vision", "a-1-0", container="worker") as stream:
        assert stream.data.read() == b'"one line"'
        assert stream.failure() is None
    server.answers.add(path, status_of(400, "BadRequest", "is waiting to start"), status=400)
    with connect(Target(server.kubeconfig)).log("vision", "a-1-0") as stream:
        assert stream.data.read() == b""
        failure = stream.failure()
    assert failure is not None
    assert failure.message == "is waiting to start"


INVALID_MEMORY = """\
The GPUJob "bad" is invalid:
* spec.gpu.memory: Invalid value: "5GB": spec.gpu.memory in body should match '^[0-9]+$'
* spec.gpu.memory: Invalid value: "5GB": must be a quantity
* spec.queue: Invalid value: "A": spec.queue in body should match '^[a-z]+$'
"""
INVALID = """\
The GPUJob "a" is invalid:
* spec.workers: Invalid value: 0: too small
* spec.queue: Invalid value: 5: not text
* <nil>: Invalid value: null: some validation rules were not checked
"""


@pytest.mark.parametrize(
    ("said", "reason", "message"),
    [
        (
            'Error from server (NotFound): gpujobs "x" not found\n',
            "NotFound",
            'gpujobs "x" not found',
        ),
        (
            INVALID,
            "Invalid",
            "spec.workers: Invalid value: 0: too small; spec.queue: Invalid value: 5: not text",
        ),
        (
            INVALID_MEMORY,
            "Invalid",
            'spec.gpu.memory: Invalid value: "5GB": must be a quantity; '
            """spec.queue: Invalid value: "A": spec.queue in body should match '^[a-z]+$'""",
        ),
        ("Warning: old\nerror: no such context\n", "", "no such context"),
        ("error: You must be logged in to the server (Unauthorized)", "Unauthorized", None),
        ("", "", "kubectl ended without a message"),
    ],
)
def test_what_kubectl_says(said: str, reason: str, message: str | None) -> None:
    found = failure_of(said)
    assert found.reason == reason
    assert message is None or found.message == message


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("Invalid", "spec.workers: Invalid value: 0", "spec.workers: Invalid value: 0"),
        (
            "BadRequest",
            'GPUJob in version "v1alpha1" cannot be handled as a GPUJob: strict decoding error: x',
            "strict decoding error: x",
        ),
        ("AlreadyExists", 'gpujobs.gpujob.dev "bad" already exists', ""),
        ("NotFound", 'namespaces "nowhere" not found', 'namespaces "nowhere" not found'),
        (
            "Forbidden",
            'gpujobs.gpujob.dev "bad" is forbidden: exceeded quota: jobs',
            "exceeded quota: jobs",
        ),
    ],
)
def test_an_answer_to_a_dry_run_is_told_without_the_object(
    reason: str, message: str, words: str
) -> None:
    assert refusal_of(KubectlError(reason, message), "team") == words


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Forbidden", 'gpujobs is forbidden: User x cannot create resource "gpujobs"'),
        ("InternalError", "upstream is away"),
    ],
)
def test_other_answers_say_nothing_of_the_object(reason: str, message: str) -> None:
    with pytest.raises(NotCheckedError):
        refusal_of(KubectlError(reason, message), "team")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("", "The connection to the server was refused"),
        ("Unauthorized", "You must be logged in to the server"),
    ],
)
def test_without_an_answer_nothing_goes_on(reason: str, message: str) -> None:
    with pytest.raises(UserError):
        refusal_of(KubectlError(reason, message), "team")


CONFIGMAPS, VOLUMES = "/api/v1/configmaps", "/api/v1/persistentvolumes"
KINDS = ("/gpujobs", "/gpunodes", "/gpuqueues", "/gpuprofiles", "/api/v1/nodes", "/api/v1/pods")


def test_everything_is_listed_jobs_first_and_pods_last(server: Server) -> None:
    for kind in KINDS:
        server.answers.add(kind, {"items": [{"metadata": {"name": kind}}], "metadata": {}})
    server.answers.add(CONFIGMAPS, {"items": [], "metadata": {}})
    server.answers.add(KINDS[-1], {"items": [{"a": 1}], "metadata": {"continue": "next"}})
    server.answers.add(KINDS[-1], {"items": [{"b": 2}], "metadata": {}}, page="next")
    found = read_all(connect(Target(server.kubeconfig)))
    assert list(found.objects.pods) == [{"a": 1}, {"b": 2}]
    assert [one["metadata"]["name"] for one in found.objects.jobs] == ["/gpujobs"]
    assert server.answers.asked == [
        *(one if one.startswith("/api/") else PREFIX + one for one in KINDS),
        KINDS[-1],
        VOLUMES,
        CONFIGMAPS,
    ]


def test_volumes_are_read_where_they_may_be(server: Server) -> None:
    for kind in KINDS:
        server.answers.add(kind, {"items": [], "metadata": {}})
    server.answers.add(VOLUMES, {"items": [{"c": 3}], "metadata": {}})
    assert list(read_all(connect(Target(server.kubeconfig))).objects.volumes) == [{"c": 3}]
    server.answers.add(VOLUMES, status_of(403, "Forbidden", "no"), status=403)
    assert list(read_all(connect(Target(server.kubeconfig))).objects.volumes) == []


def test_operators_configurations_are_read_where_they_may_be(server: Server) -> None:
    for kind in KINDS:
        server.answers.add(kind, {"items": [], "metadata": {}})
    metadata = {"namespace": "system", "name": "gpujob-configuration"}
    other = {"metadata": {"namespace": "system", "name": "other"}, "data": {"a": "b"}}
    ours = {"metadata": metadata, "data": {"configuration.yaml": "spotPriceFactor: 2"}}
    server.answers.add(CONFIGMAPS, {"items": [other, ours, {"metadata": {}}], "metadata": {}})
    found = read_all(connect(Target(server.kubeconfig))).configurations
    assert found == {"system/gpujob-configuration": "spotPriceFactor: 2"}
    server.answers.add(CONFIGMAPS, status_of(403, "Forbidden", "no"), status=403)
    assert read_all(connect(Target(server.kubeconfig))).configurations is None


def test_without_the_servers_time_a_listing_has_this_machines(server: Server) -> None:
    for kind in KINDS:
        server.answers.add(kind, {"items": [], "metadata": {}})
    before = datetime.now(UTC).replace(microsecond=0)
    assert before <= read_all(connect(Target(server.kubeconfig))).now <= datetime.now(UTC)


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_not_be_listed_is_named(server: Server, kind: str) -> None:
    for one in KINDS:
        server.answers.add(one, {"items": [], "metadata": {}})
    server.answers.add(kind, status_of(403, "Forbidden", "no"), status=403)
    with pytest.raises(UserError, match=f"may not use {kind.rpartition('/')[2]}.*403"):
        read_all(connect(Target(server.kubeconfig)))


def test_nobody_at_the_address_is_told(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        port = http.server_port
    with pytest.raises(UserError, match="was refused"):
        connect(Target(write_kubeconfig(tmp_path / "config", port))).job("x")


def test_a_missing_kubeconfig_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent"):
        connect(Target(tmp_path / "absent", namespace="x")).job("x")
