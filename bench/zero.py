"""The first answer of a service whose replica stopped or parked: the part `zero` of
`bench.services`.

A service with `minimum: 0` and without requests has stopped its replica. One request comes to the
gate, which holds it until the operator has started a replica that answers. Afterwards the replica
stops again. Then the same with `parkAfterSeconds`: the replica has parked, its memory is given
back, and the request wakes it. The process has torch and 256 MiB of weights on a CPU card.
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
PARK_AFTER_SECONDS, PARKED_SECONDS_MAX = 5, 3600
MIB = 2**20
LIMIT_SECONDS = 300.0
COLUMNS = ("act", "first_answer_seconds", "asleep_after_seconds", "reserved_mib", "status")
SCRIPT = """
import torch
from torch import nn
import gpujob_worker
layers = [nn.utils.skip_init(nn.Linear, 4096, 4096, bias=False) for _ in range(4)]
model = nn.Sequential(*layers)
for weights in model.parameters():
    nn.init.normal_(weights, std=0.01)
gpujob_worker.serve(model, torch.zeros(8, 4096), name="digits")
"""


def zero_request() -> Json:
    """Returns a request for the model of `SCRIPT`."""
    data = [0.5] * 4096
    return {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4096], "data": data}]}


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
        [worker] = body["spec"]["template"]["spec"]["containers"]
        worker["command"] = ["gpujob-run", "--", "python", "-c", SCRIPT]
        self._body = body

    def create(self) -> None:
        self._client.create(f"{OURS}/gpuservices", self._body)

    def park(self) -> None:
        """Lets its replica park instead of stop."""
        times = {"stopAfterSeconds": PARKED_SECONDS_MAX, "parkAfterSeconds": PARK_AFTER_SECONDS}
        path = f"{OURS}/gpuservices/{self._name}"
        self._client.merge(path, {"spec": {"replicas": times}})

    def reservation(self) -> Json:
        """Returns that of its replica, or {} without one."""
        jobs = self._client.get(f"{OURS}/gpujobs")["items"]
        found = (one.get("status", {}).get("reservation") for one in jobs)
        return next((one for one in found if one), {})

    def is_parked(self) -> bool:
        return self.reason() == "Parked" and self.reservation().get("source") == "Parked"

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
    """Returns a row for each start from zero, for each wake-up, and for a request to a replica that
    runs.
    """
    service = ZeroService(cluster, body)
    await asyncio.to_thread(service.create)
    await service.until(lambda: service.reason() == "ReplicasReady")
    rows = [await _row(service, request, "a replica runs")]
    await service.until(service.is_at_zero)
    rows += [await _wake(service, request, "from zero", service.is_at_zero) for _ in range(turns)]
    await asyncio.to_thread(service.park)
    rows.append(await _wake(service, request, "from zero", service.is_parked))
    rows += [await _wake(service, request, "from parked", service.is_parked) for _ in range(turns)]
    return rows


async def _wake(
    service: ZeroService, request: Json, act: str, is_asleep: Callable[[], bool]
) -> Json:
    """Sends the first request, and waits until the service is asleep again."""
    reserved = (await asyncio.to_thread(service.reservation)).get("memoryBytes", 0)
    row = await _row(service, request, act)
    began = time.monotonic()
    await service.until(is_asleep)
    row["asleep_after_seconds"] = round(time.monotonic() - began, 1)
    row["reserved_mib"] = round(reserved / MIB)
    return row


async def _row(service: ZeroService, request: Json, act: str) -> Json:
    began = time.monotonic()
    status, answer = await service.request(request)
    seconds = round(time.monotonic() - began, 3)
    if status == 200:
        answer["outputs"]
    return {
        "act": act,
        "first_answer_seconds": seconds,
        "asleep_after_seconds": None,
        "reserved_mib": None,
        "status": status,
    }
