"""Requests that a GPUService loses while its replicas are replaced, reclaimed and unwatched.

    python -m bench.services [--parts changes,zero,parked] [--rate 40] [--replicas 2]
                             [--mebibytes 512] [--quick]

A local cluster runs a real API server and real serving processes on CPU cards. Requests come
open-loop at a Poisson rate, each over its own connection, to an address of a ready pod, which is
looked up every half second. That imitates EndpointSlices and kube-proxy, which take no loopback
addresses. No request is tried again. Meanwhile

- `rolling update`: the template is edited, and every replica is replaced;
- `node reclaimed`: a node with a replica goes away, with notice and grace;
- `operator killed`: the operator ends by SIGKILL, and another one takes the lead;
- `all at once`: the template is edited, a node is reclaimed, and the operator is killed.

A request is `lost` if its connection fails or its answer is an error. An answer 503 with
Retry-After counts as `refused`. `late` ones took longer than the objective, 250 ms.

The part `zero` measures the first answer of a service that has no replica (`bench.zero`), and the
part `parked` how a single process parks and wakes, beside its cold start (`bench.parked`).
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.machine import print_result
from bench.parked import COLUMNS as PARKED_COLUMNS
from bench.parked import play_parked, summary
from bench.table import format_table
from bench.zero import COLUMNS as ZERO_COLUMNS
from bench.zero import play_zero, zero_request
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import ClusterOptions, NodeOptions
from gpujob_local.control_plane.api_client import ApiClient, Json

OURS = "/apis/gpujob.dev/v1alpha1/namespaces/default"
PODS = "/api/v1/namespaces/default/pods"
PORT = 8000
NAME = "digits"
OBJECTIVE_MILLISECONDS = 250
REQUEST_SECONDS_MAX = 20.0
READY_SECONDS_MAX = 120.0
# kube-proxy learns of a change within about this time.
ENDPOINTS_SECONDS = 0.5
NOTICE_SECONDS, GRACE_SECONDS = 2.0, 15.0
COLUMNS = ("act", "seconds", "requests", "answered", "lost", "refused", "late", "p50_ms", "p99_ms")
IMAGE = [[list(range(8)) for _ in range(8)]]


@dataclass(slots=True)
class Counts:
    """What became of the requests of one act."""

    seconds: list[float] = field(default_factory=list[float])
    lost: Counter[str] = field(default_factory=Counter[str])
    refused: int = 0

    def row(self, act: str, took_seconds: float) -> dict[str, Any]:
        found = sorted(self.seconds)
        lost = sum(self.lost.values())
        return {
            "act": act,
            "seconds": round(took_seconds, 1),
            "requests": len(found) + lost + self.refused,
            "answered": len(found),
            "lost": lost,
            "refused": self.refused,
            "late": sum(one > OBJECTIVE_MILLISECONDS / 1000 for one in found),
            "p50_ms": round(1000 * statistics.median(found), 1) if found else None,
            "p99_ms": round(1000 * found[int(0.99 * (len(found) - 1))], 1) if found else None,
            "errors": dict(self.lost.most_common(5)),
        }


class Load:
    """Requests at a Poisson rate to the ready addresses."""

    def __init__(self, client: ApiClient, rate: float) -> None:
        self._client = client
        self._rate = rate
        self._random = random.Random(1)
        self._addresses: list[str] = []
        self._pending: set[asyncio.Task[None]] = set()
        self.counts = Counts()

    async def follow(self) -> None:
        """Keeps the addresses as a node's kube-proxy does."""
        while True:
            self._addresses = await asyncio.to_thread(ready_addresses, self._client)
            await asyncio.sleep(ENDPOINTS_SECONDS)

    async def send(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(self._rate))
            task = asyncio.create_task(self._one(session, self.counts))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def settle(self) -> None:
        """Waits for the answers that are under way."""
        await asyncio.gather(*self._pending)

    async def _one(self, session: aiohttp.ClientSession, counts: Counts) -> None:
        if not self._addresses:
            counts.lost["no ready address"] += 1
            return
        url = f"http://{self._random.choice(self._addresses)}/v2/models/{NAME}/infer"
        began = time.perf_counter()
        try:
            async with session.post(url, json=request_body()) as answer:
                body = await answer.read()
                if answer.status == 503 and "Retry-After" in answer.headers:
                    counts.refused += 1
                elif answer.status != 200:
                    counts.lost[f"{answer.status} {body[:80]!r}"] += 1
                else:
                    json.loads(body)["outputs"]
                    counts.seconds.append(time.perf_counter() - began)
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            counts.lost[f"{type(error).__name__}: {error}"[:120]] += 1


def request_body() -> Json:
    one = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 8, 8], "data": [IMAGE]}
    return {"inputs": [one]}


def ready_addresses(client: ApiClient) -> list[str]:
    """Returns the addresses that an EndpointSlice would name: pods that are ready and not being
    deleted.
    """
    pods = client.get(PODS, labelSelector=f"gpujob.dev/service={NAME}")["items"]
    return [f"{pod['status']['podIP']}:{PORT}" for pod in pods if _is_ready(pod)]


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def service(replicas: int) -> Json:
    worker: Json = {
        "name": "worker",
        "image": "gpujob-worker:0.1.0",
        "command": ["gpujob-run", "--", "python", "serve_digits.py"],
    }
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUService",
        "metadata": {"name": NAME},
        "spec": {
            "objective": {"latencyMilliseconds": OBJECTIVE_MILLISECONDS, "percentile": 99},
            "replicas": {"minimum": replicas},
            "gpu": {"memory": "700Mi"},
            # A measurement would compete for the two cores of a small machine.
            "optimize": {"backend": "Eager", "precision": "float32"},
            "template": {"spec": {"containers": [worker]}},
        },
    }


class Acts:
    """What happens to the service. Each returns once the service is complete again."""

    def __init__(self, cluster: LocalCluster, replicas: int) -> None:
        self._cluster = cluster
        self._client = cluster.client()
        self._replicas = replicas
        self._version = 0

    async def start(self) -> None:
        self._client.create(f"{OURS}/gpuservices", service(self._replicas))
        await self._complete(lambda status: True)

    async def nothing(self) -> None:
        await asyncio.sleep(10)

    async def rolling_update(self) -> None:
        before = await asyncio.to_thread(self._status)
        self._edit()
        await self._complete(lambda status: status.get("revision") != before.get("revision"))

    async def node_reclaimed(self) -> None:
        node = await asyncio.to_thread(self._node)
        await asyncio.to_thread(self._cluster.reclaim, node, NOTICE_SECONDS, GRACE_SECONDS)
        # A cloud's node pool brings another one.
        await asyncio.to_thread(self._cluster.start_node, node)
        await self._complete(lambda status: True)

    async def operator_killed(self) -> None:
        self._cluster.kill_operator()
        await asyncio.sleep(3)
        await asyncio.to_thread(self._cluster.start_operator)
        await self.rolling_update()

    async def all_at_once(self) -> None:
        self._edit()
        await asyncio.sleep(2)
        self._cluster.kill_operator()
        node = await asyncio.to_thread(self._node)
        reclaimed = asyncio.create_task(
            asyncio.to_thread(self._cluster.reclaim, node, NOTICE_SECONDS, GRACE_SECONDS)
        )
        await asyncio.to_thread(self._cluster.start_operator)
        await reclaimed
        await asyncio.to_thread(self._cluster.start_node, node)
        await self._complete(lambda status: True)

    def _edit(self) -> None:
        self._version += 1
        body = service(self._replicas)
        container = body["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "VERSION", "value": str(self._version)}]
        patch = {"spec": {"template": body["spec"]["template"]}}
        self._client.merge(f"{OURS}/gpuservices/{NAME}", patch)

    def _status(self) -> Json:
        found = self._client.get(f"{OURS}/gpuservices/{NAME}")
        return {**(found.get("status") or {}), "generation": found["metadata"]["generation"]}

    def _node(self) -> str:
        """A node with a replica, a spot node if there is one."""
        spot = {node.name for node in self._cluster.options.nodes if node.spot}
        used = [one["node"] for one in _of(self._status()) if one.get("node")]
        return next((node for node in used if node in spot), used[0])

    async def _complete(self, also: Callable[[Json], bool]) -> None:
        """Waits until every replica is of the newest revision and answers."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            status = await asyncio.to_thread(self._status)
            replicas = _of(status)
            whole = len(replicas) == self._replicas and all(
                one["ready"] and one["revision"] == status.get("revision") for one in replicas
            )
            seen = status.get("observedGeneration") == status["generation"]
            if whole and seen and also(status):
                return
            await asyncio.sleep(0.5)
        status = await asyncio.to_thread(self._status)
        shown = {name: status.get(name) for name in ("revision", "replicas", "conditions")}
        text = f"the service was not complete within {READY_SECONDS_MAX:.0f} s: {shown}"
        raise RuntimeError(text)


def _of(status: Json) -> list[Json]:
    return status.get("replicas") or []


async def play(cluster: LocalCluster, rate: float, replicas: int, *, quick: bool) -> list[Json]:
    acts = Acts(cluster, replicas)
    await acts.start()
    load = Load(cluster.client(), rate)
    story: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("nothing", acts.nothing),
        ("rolling update", acts.rolling_update),
        ("node reclaimed", acts.node_reclaimed),
        ("operator killed", acts.operator_killed),
        ("all at once", acts.all_at_once),
    ]
    rows: list[Json] = []
    # Each request has its own connection, as that of another client.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        following = asyncio.create_task(load.follow())
        await asyncio.sleep(2 * ENDPOINTS_SECONDS)
        sending = asyncio.create_task(load.send(session))
        for name, act in story[: 2 if quick else None]:
            load.counts, began = Counts(), time.monotonic()
            await act()
            # What the act left behind belongs to it.
            await asyncio.sleep(5)
            rows.append(load.counts.row(name, time.monotonic() - began))
            print(format_table(rows[-1:], COLUMNS), flush=True)
            if rows[-1]["errors"]:
                print(f"  {rows[-1]['errors']}", flush=True)
        sending.cancel()
        await load.settle()
        following.cancel()
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.services", description=__doc__)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second (default 40)")
    parser.add_argument("--replicas", type=int, default=2, help="replicas (default 2)")
    parser.add_argument("--quick", action="store_true", help="a rolling update alone")
    parser.add_argument("--parts", default="changes", help="of changes, zero, parked")
    parser.add_argument("--mebibytes", type=int, default=512, help="weights of the part parked")
    options = parser.parse_args(arguments)
    parts = set(options.parts.split(","))
    if not parts <= {"changes", "zero", "parked"}:
        parser.error(f"--parts: must be of changes, zero, parked; got {options.parts}")
    failed = 0
    if "parked" in parts:
        parked(options.mebibytes, 1 if options.quick else 5)
    if "zero" in parts:
        failed |= zero(1 if options.quick else 5)
    if "changes" in parts:
        failed |= changes(options.rate, options.replicas, quick=options.quick)
    return failed


def parked(mebibytes: int, turns: int) -> None:
    rows = play_parked(mebibytes, turns)
    print(format_table(rows, PARKED_COLUMNS))
    print(summary(rows, mebibytes))
    print_result(rows, part="parked", turns=turns, mebibytes=mebibytes)


def zero(turns: int) -> int:
    """Returns 0 if each request was answered."""
    cluster_options = ClusterOptions(nodes=(NodeOptions("node-1", cards=1),))
    with LocalCluster.start(cluster_options) as cluster:
        rows = asyncio.run(play_zero(cluster, service(1), zero_request(), turns))
    print(format_table(rows, ZERO_COLUMNS))
    for act in ("from zero", "from parked"):
        seconds = [row["first_answer_seconds"] for row in rows if row["act"] == act]
        median = statistics.median(seconds)
        print(f"first answer {act}: {median:.1f} s (median of {len(seconds)})")
    lost = sum(row["status"] != 200 for row in rows)
    print_result(rows, part="zero", turns=turns, lost=lost)
    return 0 if lost == 0 else 1


def changes(rate: float, replicas: int, *, quick: bool) -> int:
    """Returns 0 if no request was lost."""
    # One card a node, so that replicas are on different nodes, one of them spot.
    nodes = (
        NodeOptions("spot-1", cards=1, spot=True),
        NodeOptions("node-1", cards=1),
        NodeOptions("node-2", cards=1),
    )
    cluster_options = ClusterOptions(nodes=nodes, operator_lease_seconds=5)
    with LocalCluster.start(cluster_options) as cluster:
        rows = asyncio.run(play(cluster, rate, replicas, quick=quick))
    print(format_table(rows, COLUMNS))
    lost = sum(row["lost"] for row in rows)
    print(f"{sum(row['requests'] for row in rows):,} requests, {lost} lost (goal 0)")
    print_result(rows, rate=rate, replicas=replicas, lost=lost)
    return 0 if lost == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
