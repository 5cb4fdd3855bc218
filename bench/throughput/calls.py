"""What the writes of operator and agents cost the API server, by kind of request.

    python -m bench.throughput.calls [--calls 300] [--rounds 3]

A real control plane without kubelets and operator. The kinds take turns, a round each. Processor
time of kube-apiserver and of etcd is divided by the number of calls, garbage collection included;
calls are made eight at a time. Statuses of jobs are those of one worker: it is placed, then it
runs, and back, so that every write changes what the product's writes change. Those of nodes have
eight GPUs, half of them busy, with other figures each time. Pods are those that the operator makes,
with its account; all else is done as an administrator.
"""

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.played_agents import PlayedNode
from bench.table import format_table
from bench.throughput.__main__ import NAMESPACES
from bench.throughput.kwok import node_manifest, node_names
from bench.throughput.load import gpujob_manifest
from bench.throughput.progress import say
from bench.throughput.stack import cpu_seconds, start_cluster
from gpujob_api.codec import encode, encode_given
from gpujob_api.gpujob import (
    GPUJobStatus,
    JobPhase,
    Placement,
    Reservation,
    ReservationSource,
    WorkerPlacement,
)
from gpujob_api.gpunode import GPUNodeStatus, summarize
from gpujob_api.manifest import GPUJOB, GPUNODE, gpujob_from_manifest, metadata_from_manifest
from gpujob_api.meta import API_VERSION, Condition, ConditionStatus
from gpujob_api.quantities import GIB
from gpujob_api.settings import Settings
from gpujob_api.summary import Summary
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.setup import OPERATOR_ACCOUNT, account_token
from gpujob_local.control_plane.api_client import ApiError
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import GPU_NODES, JOBS, PODS, Kube, Manifest
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.placement_record import STARTING_MESSAGE, record_of
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.render.pod import worker_pod
from gpujob_operator.render.status import replacement

PARALLEL = 8
NAMESPACE = "calls"
GPUS = 8
_NOW = datetime(2026, 1, 1, tzinfo=UTC)

Call = Callable[[int], Awaitable[Manifest]]


def _condition(kind: str, status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(kind, status, reason, message, _NOW, 1)


def job_status(runs: bool) -> GPUJobStatus:
    """The status of a job that was just placed, or whose worker runs."""
    where = "attempt 1 on node-0001 (GPU-node-0001-3), reserves 80 GiB on each GPU (WholeGPU)"
    running = ConditionStatus.TRUE if runs else ConditionStatus.FALSE
    words = ("WorkersRunning", "rank 0") if runs else ("Starting", STARTING_MESSAGE)
    worker = WorkerPlacement(0, "node-0001", ("GPU-node-0001-3",), "u" * 36 if runs else None)
    return GPUJobStatus(
        phase=JobPhase.RUNNING if runs else JobPhase.STARTING,
        observed_generation=1,
        attempt=1,
        placement=Placement((worker,), gpu_model="NVIDIA H100 80GB HBM3"),
        reservation=Reservation(80 * GIB, 100.0, ReservationSource.WHOLE_GPU, exclusive=True),
        attempt_started_at=_NOW,
        started_at=_NOW if runs else None,
        progressed_at=_NOW if runs else None,
        observed_at=_NOW + timedelta(seconds=runs),
        summary=Summary(memory="? of 80 GiB", where="node-0001 GPU 3"),
        conditions=(
            _condition("Accepted", ConditionStatus.TRUE, "Valid", "the spec is valid"),
            _condition("Scheduled", ConditionStatus.TRUE, "Placed", where),
            _condition("Running", running, *words),
            _condition("Succeeded", ConditionStatus.UNKNOWN, "InProgress", "not finished yet"),
        ),
    )


def node_status(node: PlayedNode) -> dict[str, Any]:
    """A status as an agent writes it, with other figures than the one before."""
    gpus, now = node.read(), datetime.now(UTC)
    ready = Condition("Ready", ConditionStatus.TRUE, "Measuring", "reads all GPUs", _NOW, 1)
    return encode(
        GPUNodeStatus(
            observed_at=now,
            observed_generation=1,
            agent_version="bench",
            driver_version="580",
            sample_interval_seconds=2.0,
            gpus=gpus,
            summary=summarize(gpus),
            conditions=(ready,),
        )
    )


@dataclass(slots=True)
class Calls:
    """Requests on many jobs and nodes by turns: what is measured, one method a kind."""

    kube: Kube
    # With the operator's account, from which alone pods of jobs are taken.
    operator: Kube
    jobs: list[Manifest]
    nodes: list[Manifest] = field(default_factory=list[Manifest])
    created: int = 0
    pods: int = 0

    async def create(self, _number: int) -> Manifest:
        self.created += 1
        return await self.kube.create(
            JOBS, gpujob_manifest(f"more-{self.created:06d}", 1), NAMESPACE
        )

    async def replace_status(self, number: int) -> Manifest:
        """As the product writes it: the whole status, in a request of its own."""
        job = self.jobs[number % len(self.jobs)]
        metadata = metadata_from_manifest(job["metadata"])
        body = replacement(GPUJOB, metadata, self._next_status(job))
        request = self.kube.replace(JOBS, metadata.name, body, NAMESPACE, subresource="status")
        return await self._take(number, request)

    async def merge_patch_status(self, number: int) -> Manifest:
        """The same status as a merge patch, which has what changed alone."""
        job = self.jobs[number % len(self.jobs)]
        before, after = job.get("status") or {}, self._next_status(job)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        gone = dict.fromkeys(before.keys() - after.keys())
        version = {"resourceVersion": job["metadata"]["resourceVersion"]}
        body = {"metadata": version, "status": changed | gone}
        name = job["metadata"]["name"]
        request = self.kube.patch(JOBS, name, body, NAMESPACE, subresource="status")
        return await self._take(number, request)

    async def get(self, number: int) -> Manifest:
        name = self.jobs[number % len(self.jobs)]["metadata"]["name"]
        return await self.kube.get(JOBS, name, NAMESPACE)

    async def create_pod(self, number: int) -> Manifest:
        """As the operator does, with the record of the placement."""
        self.pods += 1
        job = gpujob_from_manifest(self.jobs[number % len(self.jobs)])
        placed = replace(job, status=replace(job_status(runs=False), attempt=self.pods))
        create = CreatePod(placed, 0, Settings(), record=record_of(placed))
        return await self.operator.create(PODS, worker_pod(create, Configuration()), NAMESPACE)

    async def merge_patch_node_status(self, number: int) -> Manifest:
        """As an agent writes it."""
        index, node = self._node(number)
        body = {"status": node_status(node)}
        request = self.kube.patch(GPU_NODES, node.name, body, subresource="status")
        answer = self.nodes[index] = await request
        return answer

    async def replace_node_status(self, number: int) -> Manifest:
        """The same status in place of the stored one."""
        index, node = self._node(number)
        metadata = metadata_from_manifest(self.nodes[index]["metadata"])
        body = replacement(GPUNODE, metadata, node_status(node))
        request = self.kube.replace(GPU_NODES, node.name, body, subresource="status")
        answer = self.nodes[index] = await request
        return answer

    def _node(self, number: int) -> tuple[int, PlayedNode]:
        index = number % len(self.nodes)
        return index, PlayedNode(self.nodes[index]["metadata"]["name"], GPUS)

    async def _take(self, number: int, request: Awaitable[Manifest]) -> Manifest:
        answer = self.jobs[number % len(self.jobs)] = await request
        return answer

    def _next_status(self, job: Manifest) -> dict[str, Any]:
        before = job.get("status") or {}
        return encode_given(job_status(before.get("phase") != "Running"))


async def timed(cluster: LocalCluster, call: Call, calls: int) -> tuple[float, float]:
    """Milliseconds of the API server and of etcd per call."""
    children = cluster.control_plane.children
    pids = [children[name].pid for name in ("kube-apiserver", "etcd")]
    before = [cpu_seconds(pid) for pid in pids]

    async def some(first: int) -> None:
        for number in range(first, calls, PARALLEL):
            await call(number)

    await asyncio.gather(*(some(first) for first in range(PARALLEL)))
    server, etcd = (
        1000 * (cpu_seconds(pid) - then) / calls for pid, then in zip(pids, before, strict=True)
    )
    return server, etcd


async def run(cluster: LocalCluster, calls: int, rounds: int) -> list[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        kube = Kube(await load_configuration(str(cluster.kubeconfig)))
        stack.push_async_callback(kube.close)
        operator = Kube(await load_configuration(str(_operator_kubeconfig(cluster))))
        stack.push_async_callback(operator.close)
        head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        cluster.client().create(NAMESPACES, head)
        made = Calls(kube, operator, *await _objects(cluster, kube))
        kinds: dict[str, Call] = {
            "create": made.create,
            "replace status": made.replace_status,
            "merge patch of status": made.merge_patch_status,
            "get": made.get,
            "create pod": made.create_pod,
            "replace status of a node": made.replace_node_status,
            "merge patch of status of a node": made.merge_patch_node_status,
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for number in range(rounds + 1):
            say(f"round {number} of {rounds}; round 0 does not count")
            for name, call in kinds.items():
                figures = await timed(cluster, call, calls)
                if number:
                    found[name].append(figures)
        return [_row(name, figures) for name, figures in found.items()]


def _operator_kubeconfig(cluster: LocalCluster) -> Path:
    token = account_token(cluster.client(), OPERATOR_ACCOUNT)
    file = cluster.directory / "calls-operator.kubeconfig"
    cluster.control_plane.token_identity(token).write_kubeconfig(file)
    return file


async def _objects(cluster: LocalCluster, kube: Kube) -> tuple[list[Manifest], list[Manifest]]:
    """Jobs and GPUNodes. The nodes are there, or pods would be deleted; no kubelet runs them."""
    client = cluster.client()
    jobs = [
        await kube.create(JOBS, gpujob_manifest(f"job-{number:04d}", 1), NAMESPACE)
        for number in range(10 * PARALLEL)
    ]
    nodes: list[Manifest] = []
    for name in node_names(10 * PARALLEL):
        await asyncio.to_thread(client.create, "/api/v1/nodes", node_manifest(name, GPUS))
        head = {"apiVersion": API_VERSION, "kind": GPUNODE.kind, "metadata": {"name": name}}
        nodes.append(await kube.create(GPU_NODES, head | {"spec": {}}))
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    # No pod is admitted without it. The controller may have been first.
    with suppress(ApiError):
        await asyncio.to_thread(client.create, accounts, account)
    return jobs, nodes


def _row(name: str, figures: Sequence[tuple[float, float]]) -> dict[str, Any]:
    server, etcd = ([pair[index] for pair in figures] for index in (0, 1))
    return {
        "call": name,
        "apiserver_milliseconds": statistics.median(server),
        "least": min(server),
        "most": max(server),
        "etcd_milliseconds": statistics.median(etcd),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput.calls")
    parser.add_argument("--calls", type=int, default=300, help="a kind and round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with start_cluster(say) as cluster:
        rows = asyncio.run(run(cluster, options.calls, options.rounds))
    columns = ["call", "apiserver_milliseconds", "least", "most", "etcd_milliseconds"]
    print("Processor time of one call")
    print(format_table(rows, columns))
    print_result(rows, options=vars(options))


if __name__ == "__main__":
    main()
