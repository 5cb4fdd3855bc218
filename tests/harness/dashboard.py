"""The dashboard in tests: states of a cluster, and the server with an API server in memory."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import ClientSession, CookieJar, web
from aiohttp.test_utils import TestClient, TestServer

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.gpuservice import GPUService, GPUServiceStatus, ServiceSummary
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.summary import Summary
from gpujob_dashboard.api_server import APIServer
from gpujob_dashboard.groups import groups_of
from gpujob_dashboard.pages.contents import Page
from gpujob_dashboard.rendering import sections_of
from gpujob_dashboard.rights import Reviews
from gpujob_dashboard.server import Dashboard
from gpujob_dashboard.watched import Source, State, Watched
from gpujob_operator.client.kube import GPU_NODES, GPU_SERVICES, JOBS, NODES, QUEUES
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    placed,
    with_status,
)
from tests.harness.http_api import HttpApi
from tests.harness.manifests import Manifest, gpu_node_manifest, job_manifest, node_manifest
from tests.harness.services import make_service


def make_state(
    *jobs: GPUJob,
    nodes: Iterable[GPUNode] = (),
    queues: Iterable[GPUQueue] = (),
    at: float = 60.0,
    problem: str = "",
    services: Iterable[GPUService] = (),
) -> State:
    """A cluster with these objects, a minute after T0."""
    now = after(at)
    names = ("gpujobs", "gpunodes", "gpuqueues", "gpuservices")
    sources = tuple(Source(name, now, problem, 0) for name in names)
    known = groups_of(jobs)
    return State(jobs, tuple(nodes), tuple(queues), sources, now, known, tuple(services))


def waiting(job: GPUJob, reason: str, message: str) -> GPUJob:
    """A job that waits for this reason, as the operator writes it."""
    condition = Condition(
        type="Scheduled", status=ConditionStatus.FALSE, reason=reason, message=message,
        last_transition_time=T0, observed_generation=1,
    )  # fmt: skip
    return with_status(
        job, conditions=(condition,), summary=Summary(reason=f"{reason}: {message}"),
        observed_generation=1,
    )  # fmt: skip


def two_teams() -> State:
    """Jobs of two namespaces that share GPUs, wait in one queue, failed, and are suspended."""
    jobs: list[GPUJob] = []
    for team in ("zebra", "quokka"):
        runs = make_job(f"{team}-runs", namespace=f"team-{team}", uid=f"{team}-1")
        jobs.append(placed(runs, ("n0", ("GPU-0",)), phase=JobPhase.RUNNING))
        waits = make_job(f"{team}-waits", namespace=f"team-{team}", uid=f"{team}-2")
        jobs.append(waiting(waits, "InsufficientCapacity", "no GPU has 8 GiB"))
        rests = make_job(f"{team}-rests", namespace=f"team-{team}", uid=f"{team}-3", suspend=True)
        jobs.append(rests)
        ended = make_job(f"{team}-failed", namespace=f"team-{team}", uid=f"{team}-4")
        jobs.append(with_status(ended, phase=JobPhase.FAILED, finished_at=after(30)))
    nodes = (make_gpu_node("n0", make_gpu("GPU-0"), make_gpu("GPU-1", index=1)),)
    return make_state(*jobs, nodes=nodes, services=services_of("zebra", "quokka"))


def services_of(*teams: str) -> list[GPUService]:
    """One service a team, which answers no requests yet."""
    summary = ServiceSummary("0/1", "Eager float32", "", "it waits for a GPU")
    status = GPUServiceStatus(summary=summary)
    found: list[GPUService] = []
    for team in teams:
        service = make_service(f"{team}-answers")
        metadata = replace(service.metadata, namespace=f"team-{team}", uid=f"{team}-5")
        found.append(replace(service, metadata=metadata, status=status))
    return found


def html_of(page: Page) -> str:
    """All sections of a page as one text."""
    return "\n".join(sections_of(page).values())


@dataclass
class Desk:
    """A browser without scripts at a dashboard, and the API server behind that."""

    api: HttpApi
    dashboard: Dashboard
    client: "TestClient[web.Request, web.Application]"
    clock: list[float] = field(default_factory=lambda: [0.0])

    async def get(self, path: str, status: int = 200, **options: Any) -> str:
        """The text of the page, which must have this status."""
        async with self.client.get(path, allow_redirects=False, **options) as answer:
            text = await answer.text()
            assert answer.status == status, f"{path}: {answer.status}\n{text}"
            return text

    async def sign_in(self, token: str, status: int = 303) -> None:
        origin = {"Origin": f"http://{self.client.host}:{self.client.port}"}
        answer = await self.client.post(
            "/login", data={"token": token}, headers=origin, allow_redirects=False
        )
        assert answer.status == status, await answer.text()


@asynccontextmanager
async def running_dashboard(
    *jobs: GPUJob,
    nodes: Iterable[Manifest] = (),
    queues: Iterable[GPUQueue] = (),
    services: Iterable[GPUService] = (),
    users: Mapping[str, Iterable[str]] | None = None,
) -> AsyncGenerator[Desk]:
    """Yields a dashboard of these objects. With `users`, each token may list the jobs and services
    of these namespaces; "*" stands for all, and for nodes and queues too. Without, one signs in by
    the code `once`.
    """
    api = HttpApi()
    for job in jobs:
        api.put(JOBS, job_manifest(job))
    for node in nodes or (gpu_node_manifest("n0"),):
        api.put(GPU_NODES, node)
        api.put(NODES, node_manifest(node["metadata"]["name"]))
    for queue in queues:
        metadata = {"name": queue.metadata.name, "uid": queue.metadata.uid}
        api.put(QUEUES, {"metadata": metadata, "spec": encode(queue.spec)})
    for service in services:
        namespace = service.metadata.namespace
        metadata = {"name": service.metadata.name, "namespace": namespace}
        body = {"spec": encode(service.spec), "status": encode(service.status)}
        api.put(GPU_SERVICES, {"metadata": metadata | {"uid": service.metadata.uid}, **body})
    known = users or {}
    api.review = lambda token: (
        {"authenticated": True, "user": {"username": token, "groups": ["people"]}}
        if token in known
        else {"authenticated": False}
    )
    api.may = lambda spec: _may(known, spec)
    clock = [0.0]
    with api.running():
        async with ClientSession() as session:
            server = APIServer(session, api.url)
            watched = Watched(server, "team", now=lambda: after(60))
            reviews = Reviews(server, lambda: clock[0]) if users is not None else None
            dashboard = Dashboard(
                server, watched, reviews=reviews, code="" if reviews else "once",
                now=lambda: after(60), seconds=lambda: clock[0],
            )  # fmt: skip
            client = TestClient(
                TestServer(dashboard.application()), cookie_jar=CookieJar(unsafe=True)
            )
            async with client:
                task = asyncio.create_task(watched.run())
                try:
                    async with asyncio.timeout(20):
                        while watched.revision < len(watched.kinds):
                            await watched.next_revision(watched.revision, 1)
                    yield Desk(api, dashboard, client, clock)
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)


def _may(users: Mapping[str, Iterable[str]], spec: Mapping[str, Any]) -> bool:
    allowed = set(users.get(spec["user"], ()))
    attributes = spec["resourceAttributes"]
    assert attributes["verb"] == "list"
    assert spec["groups"] == ["people"]
    return "*" in allowed or attributes.get("namespace") in allowed
