"""The client against a real HTTP server: paths, preconditions, errors, pages, streams."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from gpujob_operator.client.api_errors import (
    SLOW_DOWN_SECONDS,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Refused,
    Silent,
    Throttled,
    Unavailable,
)
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import CONNECTIONS_KEPT, JOBS, LEASES, PODS, Kube, ResourceType
from gpujob_operator.client.list_pages import PAGE_REPEATS_MAX
from tests.harness.clocks import FakeClock


class _Server:
    """Answers every request with the next prepared answer and remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, Any]] = []
        # The client's port of each request.
        self.ports: list[int] = []
        self.encodings: list[str] = []
        # Set: so many requests are answered together, and none before all are there.
        self.together: asyncio.Barrier | None = None
        self.answers: list[web.Response] = []
        self.lines: list[bytes] = []
        # Set: a watch ends with its lines. Otherwise nothing more is said.
        self.ends = asyncio.Event()
        self.ends.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        content_type = request.headers.get("Content-Type", "")
        parsed = json.loads(body) if body else None
        self.requests.append((request.method, request.path_qs, content_type, parsed))
        self.encodings.append(request.headers.get("Accept-Encoding", ""))
        assert request.transport is not None
        self.ports.append(request.transport.get_extra_info("peername")[1])
        if self.together is not None:
            await self.together.wait()
        assert request.headers["Authorization"] == "Bearer secret"
        if "watch=true" in request.path_qs and not self.answers:
            response = web.StreamResponse()
            await response.prepare(request)
            for line in self.lines:
                await response.write(line + b"\n")
            await self.ends.wait()
            return response
        return self.answers.pop(0) if self.answers else web.json_response({"kind": "Ok"})


@pytest.fixture
def server() -> _Server:
    return _Server()


@pytest.fixture
async def kube(server: _Server) -> AsyncGenerator[Kube]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    async with TestServer(application) as test_server:
        configuration = client.Configuration(host=str(test_server.make_url("")).rstrip("/"))
        configuration.api_key = {"authorization": "Bearer secret"}
        kube = Kube(configuration)
        yield kube
        await kube.close()


def _status(
    code: int, reason: str = "", message: str = "why", *, headers: dict[str, str] | None = None
) -> web.Response:
    body = {"kind": "Status", "reason": reason, "message": message, "code": code}
    return web.json_response(body, status=code, headers=headers)


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "subresource", "path"),
    [
        (PODS, "team", "a", "", "/api/v1/namespaces/team/pods/a"),
        (PODS, "", "", "", "/api/v1/pods"),
        (JOBS, "team", "a", "status", "/apis/gpujob.dev/v1alpha1/namespaces/team/gpujobs/a/status"),
        (LEASES, "x", "l", "", "/apis/coordination.k8s.io/v1/namespaces/x/leases/l"),
        (ResourceType("", "v1", "nodes", namespaced=False), "x", "n", "", "/api/v1/nodes/n"),
    ],
)
def test_paths(kind: ResourceType, namespace: str, name: str, subresource: str, path: str) -> None:
    assert kind.path(namespace, name, subresource) == path


async def test_lists_and_watches_have_connections_of_their_own(kube: Kube, server: _Server) -> None:
    """One that has carried a large answer holds more memory for as long as it is open."""
    listed = {"metadata": {"resourceVersion": "7"}, "items": [{"a": "b" * 100_000}]}
    for number in range(3):
        server.together = asyncio.Barrier(number + 1)
        await asyncio.gather(*(kube.create(PODS, {"n": n}, "team") for n in range(number + 1)))
        server.together = None
        server.answers = [web.json_response(listed)]
        await kube.list(JOBS)
        assert [event async for event in kube.watch(JOBS, "7")] == []
    bulk = [request[0] == "GET" for request in server.requests]
    assert bulk.count(True) == bulk.count(False) == 6
    of_bulk, of_writes = (
        {port for port, is_bulk in zip(server.ports, bulk, strict=True) if is_bulk is wanted}
        for wanted in (True, False)
    )
    assert not of_bulk & of_writes
    assert len(of_writes) == 3


async def test_no_answer_is_to_be_compressed(kube: Kube, server: _Server) -> None:
    server.answers = [web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})]
    await kube.list(JOBS)
    assert [event async for event in kube.watch(JOBS, "7")] == []
    await kube.get(PODS, "a", "team")
    assert server.encodings == ["identity"] * 3


async def test_of_many_calls_at_a_time_few_keep_their_connection(
    kube: Kube, server: _Server
) -> None:
    """The others go over connections that are closed when nobody needs them."""
    server.together = asyncio.Barrier(40)
    for _ in range(2):
        await asyncio.gather(*(kube.create(PODS, {}, "team") for _ in range(40)))
    assert len(set(server.ports)) == 40
    server.together = None
    server.ports.clear()
    for _ in range(2 * CONNECTIONS_KEPT):
        await kube.create(PODS, {}, "team")
    assert len(set(server.ports)) == CONNECTIONS_KEPT


async def test_a_status_patch(kube: Kube, server: _Server) -> None:
    body = {"metadata": {"resourceVersion": "7"}, "status": {"phase": "Running"}}
    await kube.patch(JOBS, "a", body, "team", subresource="status")
    path = "/apis/gpujob.dev/v1alpha1/namespaces/team/gpujobs/a/status"
    assert server.requests == [("PATCH", path, "application/merge-patch+json", body)]


async def test_delete_carries_uid_and_grace(kube: Kube, server: _Server) -> None:
    await kube.delete(PODS, "a", "team", uid="u", grace_seconds=9)
    method, _, _, body = server.requests[0]
    assert method == "DELETE"
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": "u"}, 9)


async def test_create_and_replace(kube: Kube, server: _Server) -> None:
    await kube.create(PODS, {"metadata": {"name": "a"}}, "team")
    await kube.replace(LEASES, "l", {"spec": {}}, "x")
    assert [(method, path.rsplit("/", 1)[-1]) for method, path, _, _ in server.requests] == [
        ("POST", "pods"),
        ("PUT", "l"),
    ]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: _status(404, "NotFound"), NotFound),
        (lambda: _status(409, "AlreadyExists"), AlreadyExists),
        (lambda: _status(409, "Conflict"), Conflict),
        (lambda: _status(403, "Forbidden"), Forbidden),
        (lambda: _status(410, "Expired"), Gone),
        (lambda: _status(429, "TooManyRequests"), Throttled),
        (lambda: _status(500, "InternalError"), Unavailable),
        (lambda: _status(500, "InternalError", 'failed calling webhook "x"'), Refused),
        (lambda: _status(500, "", "etcdserver: request is too large"), Refused),
        (lambda: _status(503, "", "failed calling webhook"), Unavailable),
        (lambda: _status(413, "RequestEntityTooLarge"), ApiError),
        (lambda: web.Response(status=503, text="<html>"), Unavailable),
        (lambda: _status(422, "Invalid"), ApiError),
    ],
)
async def test_errors_have_types(
    kube: Kube, server: _Server, answer: Any, error: type[ApiError]
) -> None:
    server.answers = [answer()]
    with pytest.raises(error) as caught:
        await kube.get(PODS, "a", "team")
    assert type(caught.value) is error


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("soon", None), (None, None)])
async def test_retry_after(
    kube: Kube, server: _Server, header: str | None, seconds: float | None
) -> None:
    server.answers = [_status(429, headers={"Retry-After": header} if header else None)]
    with pytest.raises(Throttled) as caught:
        await kube.get(PODS, "a", "team")
    assert caught.value.retry_after_seconds == seconds


async def test_nobody_there() -> None:
    kube = Kube(client.Configuration(host="http://127.0.0.1:9"))
    with pytest.raises(Unavailable):
        await kube.get(PODS, "a", "team")
    await kube.close()


async def test_no_answer_in_time(kube: Kube) -> None:
    with pytest.raises(Unavailable):
        await kube._call("GET", "/slow", seconds=0.000001)


async def test_a_list_comes_in_pages(kube: Kube, server: _Server) -> None:
    server.answers = [
        web.json_response(
            {"metadata": {"resourceVersion": "5", "continue": "next"}, "items": [{"n": 1}]}
        ),
        web.json_response({"metadata": {"resourceVersion": "5"}, "items": [{"n": 2}]}),
    ]
    listing = await kube.list(PODS, field_selector="a=b")
    assert (listing.items, listing.resource_version) == ([{"n": 1}, {"n": 2}], "5")
    assert "fieldSelector=a%3Db" in server.requests[0][1]
    assert "continue=next" in server.requests[1][1]


def _page(number: int, more: str = "") -> web.Response:
    metadata = {"resourceVersion": "5"} | ({"continue": more} if more else {})
    return web.json_response({"metadata": metadata, "items": [{"n": number}]})


def _slow_down(seconds: str) -> web.Response:
    return web.json_response({"code": 429}, status=429, headers={"Retry-After": seconds})


async def test_a_page_is_awaited_where_the_server_asks_to_slow_down(
    kube: Kube, server: _Server
) -> None:
    """The pages before are not read once more."""
    clock = FakeClock()
    kube._sleep = clock.sleep
    server.answers = [_page(1, "next"), _slow_down("3"), _slow_down("0"), _page(2)]
    listing = await kube.list(PODS)
    assert listing.items == [{"n": 1}, {"n": 2}]
    assert clock.slept == [3.0, SLOW_DOWN_SECONDS]
    assert ["continue=next" in request[1] for request in server.requests] == [
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(("first", "asked"), [(True, 1), (False, 2 + PAGE_REPEATS_MAX)])
async def test_a_list_is_given_up_where_the_server_goes_on_asking(
    kube: Kube, server: _Server, first: bool, asked: int
) -> None:
    kube._sleep = FakeClock().sleep
    server.answers = [] if first else [_page(1, "next")]
    server.answers += [_slow_down("1") for _ in range(20)]
    with pytest.raises(Throttled):
        await kube.list(PODS)
    assert len(server.requests) == asked


async def test_a_watch(kube: Kube, server: _Server) -> None:
    events = [{"type": "ADDED", "object": {"n": 1}}, {"type": "BOOKMARK", "object": {"n": 2}}]
    server.lines = [json.dumps(event).encode() for event in events]
    seen = [event async for event in kube.watch(PODS, "41")]
    assert seen == events
    assert "resourceVersion=41" in server.requests[0][1]
    assert "allowWatchBookmarks=true" in server.requests[0][1]


async def test_a_watch_that_is_too_old(kube: Kube, server: _Server) -> None:
    error = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "old"}}
    server.lines = [json.dumps(error).encode()]
    with pytest.raises(Gone):
        _ = [event async for event in kube.watch(PODS, "1")]


async def test_a_watch_in_which_nothing_is_said_any_more(
    kube: Kube, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpujob_operator.client.kube.WATCH_SILENCE_SECONDS_MAX", 0.2)
    server.ends.clear()
    with pytest.raises(Silent):
        _ = [event async for event in kube.watch(PODS, "1")]
    server.ends.set()


async def test_a_watch_that_is_refused(kube: Kube, server: _Server) -> None:
    server.answers = [_status(410, "Expired")]
    with pytest.raises(Gone):
        _ = [event async for event in kube.watch(PODS, "1")]


async def test_a_watch_line_larger_than_usual_buffers(kube: Kube, server: _Server) -> None:
    event = {"type": "ADDED", "object": {"text": "x" * 1_500_000}}
    server.lines = [json.dumps(event).encode()]
    assert [one async for one in kube.watch(PODS, "1")] == [event]


async def test_after_write_is_called_for_writes_that_worked(server: _Server, kube: Kube) -> None:
    written: list[str] = []

    def note(kind: ResourceType) -> None:
        written.append(kind.plural)

    kube._after_write = note
    await kube.get(PODS, "a", "team")
    await kube.create(PODS, {}, "team")
    server.answers = [_status(409, "Conflict")]
    with pytest.raises(Conflict):
        await kube.create(JOBS, {}, "team")
    assert written == ["pods"]


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://kube.example:6443"}}]
users: [{name: me, user: {token: abc}}]
"""


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "kube.example"}, None),
        ({"HTTP_PROXY": "http://proxy:3128"}, None),
    ],
)
async def test_proxies_are_looked_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], proxy: str | None
) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    configuration = await load_configuration(str(path))
    assert configuration.host == "https://kube.example:6443"
    assert configuration.proxy == proxy
    assert configuration.client_session_kwargs == {"trust_env": False}
