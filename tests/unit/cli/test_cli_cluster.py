"""The real Kubernetes client against an HTTP server that answers as an API server would."""

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

from kubectl_gpujob.cluster import Target, connect
from kubectl_gpujob.errors import UserError
from tests.harness.cli_jobs import manifest

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


def test_an_unknown_context_is_told_with_those_there_are(server: Server) -> None:
    with pytest.raises(UserError, match=r"no context moon .* lab, prod"):
        connect(Target(server.kubeconfig, context="moon"))


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


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, "check your kubeconfig credentials"),
        (403, "may not read gpujob x in namespace vision"),
        (404, "not found: gpujob x in namespace vision"),
        (503, "answered 503"),
    ],
)
def test_refusals_say_what_to_do(server: Server, status: int, expected: str) -> None:
    server.answers.add("/namespaces/vision/gpujobs/x", {"kind": "Status"}, status=status)
    with pytest.raises(UserError, match=expected):
        connect(Target(server.kubeconfig)).job("x")


CONFIGMAPS, VOLUMES = "/api/v1/configmaps", "/api/v1/persistentvolumes"
KINDS = ("/gpujobs", "/gpunodes", "/gpuqueues", "/gpuprofiles", "/api/v1/nodes", "/api/v1/pods")


def test_everything_is_listed_jobs_first_and_pods_last(server: Server) -> None:
    for kind in KINDS:
        server.answers.add(kind, {"items": [{"metadata": {"name": kind}}], "metadata": {}})
    server.answers.add(CONFIGMAPS, {"items": [], "metadata": {}})
    server.answers.add(KINDS[-1], {"items": [{"a": 1}], "metadata": {"continue": "next"}})
    server.answers.add(KINDS[-1], {"items": [{"b": 2}], "metadata": {}}, page="next")
    found = connect(Target(server.kubeconfig)).listing()
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
    assert list(connect(Target(server.kubeconfig)).listing().objects.volumes) == [{"c": 3}]
    server.answers.add(VOLUMES, {"kind": "Status"}, status=403)
    assert list(connect(Target(server.kubeconfig)).listing().objects.volumes) == []


def test_operators_configurations_are_read_where_they_may_be(server: Server) -> None:
    for kind in KINDS:
        server.answers.add(kind, {"items": [], "metadata": {}})
    metadata = {"namespace": "system", "name": "gpujob-configuration"}
    other = {"metadata": {"namespace": "system", "name": "other"}, "data": {"a": "b"}}
    ours = {"metadata": metadata, "data": {"configuration.yaml": "spotPriceFactor: 2"}}
    server.answers.add(CONFIGMAPS, {"items": [other, ours, {"metadata": {}}], "metadata": {}})
    found = connect(Target(server.kubeconfig)).listing().configurations
    assert found == {"system/gpujob-configuration": "spotPriceFactor: 2"}
    server.answers.add(CONFIGMAPS, {"kind": "Status"}, status=403)
    assert connect(Target(server.kubeconfig)).listing().configurations is None


def test_the_time_of_a_listing_is_the_servers(server: Server) -> None:
    for kind in KINDS:
        server.answers.add(kind, {"items": [], "metadata": {}})
    before = datetime.now(UTC).replace(microsecond=0)
    assert before <= connect(Target(server.kubeconfig)).listing().now <= datetime.now(UTC)


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_not_be_listed_is_named(server: Server, kind: str) -> None:
    for one in KINDS:
        server.answers.add(one, {"items": [], "metadata": {}})
    server.answers.add(kind, {"kind": "Status"}, status=403)
    with pytest.raises(UserError, match=f"may not read {kind.rpartition('/')[2]}.*403"):
        connect(Target(server.kubeconfig)).listing()


def test_nobody_at_the_address_is_told(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        port = http.server_port
    with pytest.raises(UserError, match="cannot be reached"):
        connect(Target(write_kubeconfig(tmp_path / "config", port))).job("x")


def test_a_missing_kubeconfig_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no usable kubeconfig"):
        connect(Target(tmp_path / "absent"))
