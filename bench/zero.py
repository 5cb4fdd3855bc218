"""The first answer of a service that has no replica: the part `zero` of `bench.services`.

A service with `minimum: 0` and without requests has stopped its replica. One request comes to the
gate, which holds it until the operator has started a replica that answers. Afterwards the replica
stops again. The process loads torch and a model of 1 MiB on a CPU card.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.control_plane.api_client import ApiClient, Json

OURS = "/apis/gpujob.dev/v1alpha1/namespaces/default"
STOP_AFTER_SECONDS, COLD_START_SECONDS = 5, 120
LIMIT_SECONDS = 300.0
COLUMNS = ("act", "first_answer_seconds", "stopped_after_seconds", "status")


class ZeroService:
    """One service, and its gate."""

    def __init__(self, cluster: LocalCluster, body: Json) -> None:
        self._client: ApiClient = cluster.client()
        self._name: str = body["metadata"]["name"]
        body["spec"]["replicas"] = {
            "minimum": 0,
            "stopAfterSeconds": STOP_AFTER_SECONDS,
            "coldStartSeconds": COLD_START_SECONDS,
        }
        self._body = body

    def create(self) -> None:
        self._client.create(f"{OURS}/gpuservices", self._body)

    def status(self) -> Json:
        return self._client.get(f"{OURS}/gpuservices/{self._name}").get("status") or {}

    def reason(self) -> str:
        """Returns the reason of the condition Ready."""
        conditions = self.status().get("conditions") or ()
        return next((one["reason"] for one in conditions if one["type"] == "Ready"), "")

    def is_at_zero(self) -> bool:
        pods = self._client.get(
            "/api/v1/namespaces/default/pods", labelSelector=f"gpujob.dev/service={self._name}"
        )["items"]
        replicas = [one for one in pods if "gpujob.dev/gate" not in one["metadata"]["labels"]]
        return self.reason() == "ScaledToZero" and not replicas

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not await asyncio.to_thread(condition):
            if time.monotonic() > deadline:
                status = await asyncio.to_thread(self.status)
                raise RuntimeError(f"not within {LIMIT_SECONDS:.0f} s: {status}")
            await asyncio.sleep(0.1)

    async def request(self, body: Json) -> tuple[int, Any]:
        """Sends one request to the gate. Returns its status and answer."""
        gate = (await asyncio.to_thread(self.status))["gate"]
        url = f"http://{gate['address']}/v2/models/{self._name}/infer"
        timeout = aiohttp.ClientTimeout(total=LIMIT_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=body) as answer,
        ):
            return answer.status, json.loads(await answer.read())


async def play_zero(cluster: LocalCluster, body: Json, request: Json, turns: int) -> list[Json]:
    """Returns a row for each start from zero, and one for a request to a replica that runs."""
    service = ZeroService(cluster, body)
    await asyncio.to_thread(service.create)
    await service.until(lambda: service.reason() == "ReplicasReady")
    rows = [await _row(service, request, "a replica runs")]
    for turn in range(turns):
        await service.until(service.is_at_zero)
        rows.append(await _row(service, request, f"from zero, {turn + 1}"))
        began = time.monotonic()
        await service.until(service.is_at_zero)
        rows[-1]["stopped_after_seconds"] = round(time.monotonic() - began, 1)
    return rows


async def _row(service: ZeroService, request: Json, act: str) -> Json:
    began = time.monotonic()
    status, answer = await service.request(request)
    seconds = round(time.monotonic() - began, 3)
    if status == 200:
        answer["outputs"]
    return {
        "act": act,
        "first_answer_seconds": seconds,
        "stopped_after_seconds": None,
        "status": status,
    }
