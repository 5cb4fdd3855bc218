"""The dashboard with a real API server: its own rights, tokens of viewers, and kubectl's proxy."""

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from aiohttp import ClientSession, CookieJar, TCPConnector, web
from aiohttp.test_utils import TestClient, TestServer

from gpujob_dashboard.api_server import APIServer, APIServerError, through_kubectl
from gpujob_dashboard.rights import Reviews
from gpujob_dashboard.server import REST_SECONDS, Dashboard
from gpujob_dashboard.watched import Watched
from gpujob_local.control_plane.api_client import ssl_context
from gpujob_local.control_plane.tools import find_tools
from tests.harness.builders import make_job
from tests.harness.chart import CHART
from tests.harness.cluster import RunningControlPlane
from tests.harness.manifests import job_manifest
from tests.harness.tenants import Tenants

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
RULES = yaml.safe_load((CHART / "files" / "dashboard-rules.yaml").read_text(encoding="utf-8"))
LIST_JOBS: dict[str, Any] = {
    "apiGroups": ["gpujob.dev"],
    "resources": ["gpujobs"],
    "verbs": ["get", "list", "watch", "create"],
}
LIST_ALL = {
    "apiGroups": ["gpujob.dev"],
    "resources": ["gpujobs", "gpunodes", "gpuqueues", "pods"],
    "verbs": ["list"],
}
LIST_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}


@dataclass
class Page:
    """A dashboard with exactly the chart's rights, and a browser without scripts."""

    dashboard: Dashboard
    client: "TestClient[web.Request, web.Application]"
    later: list[float] = field(default_factory=lambda: [0.0])

    async def sign_in(self, token: str) -> None:
        self.client.session.cookie_jar.clear()
        origin = {"Origin": f"http://{self.client.host}:{self.client.port}"}
        async with self.client.post(
            "/login", data={"token": token}, headers=origin, allow_redirects=False
        ) as answer:
            assert answer.status == 303, await answer.text()

    async def text(self, path: str, status: int = 200) -> str:
        async with self.client.get(path, allow_redirects=False) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text


@asynccontextmanager
async def in_cluster(running: RunningControlPlane, token: str) -> AsyncGenerator[Page]:
    identity = running.control_plane.identity("admin")
    # Without a client certificate, so that the token alone counts.
    trusted = ssl_context(replace(identity, certificate=None, key=None))
    async with ClientSession(connector=TCPConnector(ssl=trusted)) as session:
        server = APIServer(session, identity.server, lambda: {"Authorization": f"Bearer {token}"})
        watched = Watched(server, "default")
        later = [0.0]
        seconds: Callable[[], float] = lambda: time.monotonic() + later[0]  # noqa: E731
        dashboard = Dashboard(server, watched, reviews=Reviews(server, seconds), seconds=seconds)
        client = TestClient(TestServer(dashboard.application()), cookie_jar=CookieJar(unsafe=True))
        async with client:
            task = asyncio.create_task(watched.run())
            try:
                async with asyncio.timeout(30):
                    while watched.revision < len(watched.kinds):
                        await watched.next_revision(watched.revision, 1)
                assert [kind.problem for kind in watched.kinds] == [""] * 4
                yield Page(dashboard, client, later)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def put_job(tenants: Tenants, namespace: str, name: str) -> None:
    manifest = job_manifest(make_job(name, namespace=namespace))
    for server_made in ("uid", "resourceVersion", "creationTimestamp", "generation"):
        manifest["metadata"].pop(server_made, None)
    manifest.pop("status", None)
    path = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs"
    await asyncio.to_thread(tenants.admin.create, path, manifest)


async def shown(page: Page, path: str, text: str) -> None:
    """Waits until the page has the text, within the time that a change may take."""
    deadline = time.monotonic() + 10
    while text not in await page.text(path):
        assert time.monotonic() < deadline, text
        await asyncio.sleep(0.1)


async def test_viewers_see_the_jobs_that_they_may_list_and_no_others(
    control_plane: RunningControlPlane,
) -> None:
    tenants = Tenants(control_plane)
    zebra, quokka = tenants.namespace(), tenants.namespace()
    own = tenants.user(zebra, "dashboard", *RULES, everywhere=True)
    zebras = tenants.user(zebra, "zebra", LIST_JOBS)
    quokkas = tenants.user(quokka, "quokka", LIST_JOBS)
    admin = tenants.user(zebra, "watcher", LIST_ALL, LIST_PODS, everywhere=True)
    await put_job(tenants, zebra, "striped")
    await put_job(tenants, quokka, "smiling")
    async with in_cluster(control_plane, own.token) as page:
        await page.sign_in(zebras.token)
        await shown(page, "/?status=waiting", "striped")
        text = await page.text("/?status=waiting")
        assert "smiling" not in text
        assert quokka not in text
        assert "gpunodes.gpujob.dev" in await page.text("/gpus")
        assert "metadata" in await page.text(f"/job/{zebra}/striped/yaml")
        await page.text(f"/job/{quokka}/smiling", 404)
        await page.text(f"/job/{quokka}/smiling/yaml", 404)
        await page.sign_in(quokkas.token)
        text = await page.text("/?status=waiting")
        assert "smiling" in text
        assert "striped" not in text
        await page.sign_in(admin.token)
        text = await page.text("/?status=waiting")
        assert "smiling" in text
        assert "striped" in text
        assert "Nothing was written" in await page.text("/what-if?horizon=1h")
        change = f"/what-if?job={zebra}/striped&memory=1Gi&priority=7&slowdown=20"
        assert "spec.priority: 0 -&gt; 7" in await page.text(change)
        await page.sign_in(quokkas.token)
        text = await page.text(change)
        assert "needs the right to list" in text
        assert "spec.priority" not in text


async def test_an_account_that_is_deleted_is_signed_out_within_half_a_minute(
    control_plane: RunningControlPlane,
) -> None:
    tenants = Tenants(control_plane)
    namespace = tenants.namespace()
    own = tenants.user(namespace, "dashboard", *RULES, everywhere=True)
    viewer = tenants.user(namespace, "viewer", LIST_JOBS)
    async with in_cluster(control_plane, own.token) as page:
        await page.sign_in(viewer.token)
        async with page.client.get("/stream", params={"page": "/"}) as stream:
            await stream.content.readuntil(b"\n\n")
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/viewer"
            await asyncio.to_thread(tenants.admin.delete, account)
            # The API server itself remembers tokens for ten seconds.
            reviews = page.dashboard.reviews
            assert reviews is not None
            async with asyncio.timeout(30):
                while True:
                    if await reviews.viewer(viewer.token) is None:
                        break
                    await asyncio.sleep(0.1)
            page.later[0] += REST_SECONDS
            await put_job(tenants, namespace, "anything")
            async with asyncio.timeout(30):
                assert b"signed-out" in await stream.content.read()
        await page.text("/", 303)


@pytest.fixture
def kubectl_on_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    kubectl = find_tools()["kubectl"]
    monkeypatch.setenv("PATH", f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}")
    return kubectl


@pytest.mark.usefixtures("kubectl_on_path")
async def test_kubectls_proxy_reads_and_refuses_to_write(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    flags = ("--kubeconfig", str(control_plane.kubeconfig))
    async with through_kubectl(flags) as server:
        assert (await server.get("/version"))["major"]
        _, version = await server.list("/apis/gpujob.dev/v1alpha1/gpujobs")
        assert version
        with pytest.raises(APIServerError) as refused:
            await server.post(f"/api/v1/namespaces/{namespace}/configmaps", {})
        assert refused.value.status == 403


@pytest.mark.usefixtures("kubectl_on_path")
async def test_a_context_that_does_not_exist_is_named(control_plane: RunningControlPlane) -> None:
    flags = ("--kubeconfig", str(control_plane.kubeconfig), "--context", "moon")
    with pytest.raises(APIServerError, match="moon"):
        async with through_kubectl(flags):
            pass


@pytest.mark.usefixtures("kubectl_on_path")
async def test_one_command_opens_the_page_with_ones_own_kubeconfig(
    control_plane: RunningControlPlane,
) -> None:
    tenants = Tenants(control_plane)
    namespace = tenants.namespace()
    await put_job(tenants, namespace, "laptop")
    command = [sys.executable, "-m", "kubectl_gpujob", "dashboard", "--no-open"]
    process = await asyncio.create_subprocess_exec(
        *command, "--kubeconfig", str(control_plane.kubeconfig), "-n", namespace,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        found = re.search(r"http://127\.0\.0\.1:\d+/login\?code=\S+", line)
        assert found, line
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
            async with session.get(found[0]) as answer:
                assert answer.status == 200
                base = f"{answer.url.scheme}://{answer.url.host}:{answer.url.port}"
            deadline = time.monotonic() + 10
            while True:
                async with session.get(f"{base}/?status=waiting") as answer:
                    if "laptop" in await answer.text():
                        break
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        async with ClientSession() as other, other.get(f"{base}/") as answer:
            assert "Sign in" in await answer.text()
        [proxy] = psutil.Process(process.pid).children()
        assert "proxy" in proxy.cmdline()
    finally:
        process.terminate()
        assert await process.wait() == 0
    assert not proxy.is_running()
