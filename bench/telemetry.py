"""What agents cost the API server, by the way that their readings go: by statuses, then directly.

    python -m bench.telemetry --nodes 200 --gpus 8 --seconds 300 [--ways none,direct,lease]

A real control plane and a real operator with a standby; the nodes are objects, and their agents are
the product's own in one process, with readings that are made up: half of the GPUs are busy, and on
each node the owner of a GPU changes every five minutes. After `direct` the leader is killed.
Everything shares the machine, so compare the rows of one run and nothing else.

Writes are all writing requests that the API server counted, whoever made them: those of the
operator and the control plane are in the row without agents, too.
"""

import argparse
import asyncio
import logging
import random
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.machine import print_result
from bench.played_agents import (
    AGENT_ARGUMENT,
    INTERVAL_SECONDS,
    PlayedNode,
    Witness,
    logged,
    node_session,
    readings_url,
    write_token,
)
from bench.table import format_table
from bench.throughput.__main__ import say
from bench.throughput.figures import Series, difference, writes_by_kind
from bench.throughput.stack import requests_so_far
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import ClusterOptions
from gpujob_local.cluster.setup import SYSTEM_NAMESPACE
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_operator.agent.direct import DirectReadings
from gpujob_operator.agent.publish import Publisher, Readiness
from gpujob_operator.agent.websocket import WebSocketConnections
from gpujob_operator.client.api_errors import ApiError
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import LEASES, Kube

COLUMNS = (
    *("way", "writes_per_second", "api_server_percent", "etcd_percent", "operator_percent"),
    "failed_writes",
)
# By the word of `--ways`, in the order in which they are measured.
WAYS = {
    "none": "no agents",
    "status": "status",
    "direct": "direct",
    "lease": "a Lease in 10 s",
}
# Of the rows that nothing varies.
STEADY_SECONDS = 60.0
# No kubelet says that a node is alive, and what is written of dead ones is no cost of agents.
NODE_GRACE_SECONDS = 86_400
PROGRESS_SECONDS = 30.0
PROGRESS_NODES = 100
CONNECT_SECONDS_MAX = 300.0
LEASE_SECONDS = 10.0
PODS_AT_ONCE = 16
READY = Readiness(True, "Measuring", "the agent reads all GPUs")
MEASURED = ("kube-apiserver", "etcd", "operator")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    logging.getLogger("gpujob_operator").setLevel(logging.ERROR)
    control_plane = ControlPlaneOptions(node_grace_seconds=NODE_GRACE_SECONDS)
    wanted = ClusterOptions(nodes=(), agents=False, operator=False, control_plane=control_plane)
    with LocalCluster.start(wanted, say=say) as cluster:
        rows, change_seconds = asyncio.run(_measure(cluster, options))
    print(format_table(rows, COLUMNS))
    print("\nWrites a second, by kind")
    print(format_table(kind_rows(rows), ["writes", *(str(row["way"]) for row in rows)]))
    if change_seconds is not None:
        print(f"\na new leader had the readings of all nodes after {change_seconds:.2f} s")
    print_result(rows, bench="telemetry", leader_change_seconds=change_seconds, **vars(options))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=text)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0, help="of each way")
    parser.add_argument("--ways", type=_ways, default=list(WAYS), help=f"of {', '.join(WAYS)}")
    return parser.parse_args(arguments)


def _ways(text: str) -> list[str]:
    named = set(text.split(","))
    if unknown := sorted(named - WAYS.keys()):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; of {', '.join(WAYS)}")
    return [way for way in WAYS if way in named]


def cost_row(
    way: str, seconds: float, used: Mapping[str, float], requests: Series
) -> dict[str, Any]:
    """What was counted in so many seconds: processor seconds of each part, and requests."""
    writes = writes_by_kind(requests)
    return {
        "way": way,
        "writes_per_second": round(sum(writes.values()) / seconds, 2),
        "api_server_percent": round(100 * used["kube-apiserver"] / seconds, 2),
        "etcd_percent": round(100 * used["etcd"] / seconds, 2),
        "operator_percent": round(100 * used["operator"] / seconds, 2),
        "writes_by_kind": {kind: count / seconds for kind, count in sorted(writes.items())},
    }


def kind_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a kind of object, one column a way: writes a second, most first."""
    kinds = {kind for row in rows for kind in row["writes_by_kind"]}
    found = {
        kind: {str(row["way"]): float(row["writes_by_kind"].get(kind, 0.0)) for row in rows}
        for kind in kinds
    }
    order = sorted(kinds, key=lambda kind: (-max(found[kind].values()), kind))
    return [{"writes": kind, **found[kind]} for kind in order]


class _Fleet:
    """The agents of all nodes, in this process."""

    def __init__(
        self, kube: Kube, nodes: list[PlayedNode], tokens: list[Path], urls: list[str]
    ) -> None:
        self._nodes = nodes
        self.nodes = len(nodes)
        self._connections = [
            WebSocketConnections(token, node_session(number)) for number, token in enumerate(tokens)
        ]
        self.failed = 0
        self.witness = Witness()
        pairs = zip(nodes, self._connections, strict=True) if urls else ()
        connects = [self.witness.watching(node.name, one.connect) for node, one in pairs]
        self.direct = [DirectReadings(urls, one, time.monotonic) for one in connects]
        ways = self.direct or [None] * len(nodes)
        self._publishers = [
            Publisher(
                kube,
                node.name,
                interval_seconds=INTERVAL_SECONDS,
                agent_version="bench",
                clock=lambda: datetime.now(UTC),
                monotonic=time.monotonic,
                direct=way,
            )
            for node, way in zip(nodes, ways, strict=True)
        ]
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(len(nodes))]
        self._tasks += [asyncio.create_task(one.run()) for one in self.direct]

    async def _work(self, number: int) -> None:
        await asyncio.sleep(random.uniform(0, LEASE_SECONDS))
        while True:
            gpus = self._nodes[number].read()
            try:
                await self._publishers[number].publish(gpus, "580", READY)
            except ApiError:
                # The agent's loop goes on as well.
                self.failed += 1
            await asyncio.sleep(INTERVAL_SECONDS)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._connections:
            await one.close()


class _Meter:
    """Processor seconds of the parts, and what the API server counted."""

    def __init__(self, cluster: LocalCluster) -> None:
        children = cluster.control_plane.children | cluster.children
        self._processes = {name: psutil.Process(children[name].pid) for name in MEASURED}
        self._client = cluster.client()

    def follow(self, name: str, pid: int) -> None:
        """Another process does the part's work now."""
        self._processes[name] = psutil.Process(pid)

    async def row(self, way: str, seconds: float) -> dict[str, Any]:
        requests = await asyncio.to_thread(requests_so_far, self._client)
        before, started = self._used(), time.monotonic()
        while (left := started + seconds - time.monotonic()) > 0:
            say(f"{way}: {left:.0f} s to go")
            await asyncio.sleep(min(left, PROGRESS_SECONDS))
        passed = time.monotonic() - started
        used = {name: value - before[name] for name, value in self._used().items()}
        now = await asyncio.to_thread(requests_so_far, self._client)
        return cost_row(way, passed, used, difference(now, requests))

    def _used(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, process in self._processes.items():
            times = process.cpu_times()
            found[name] = times.user + times.system
        return found


async def _measure(
    cluster: LocalCluster, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], float | None]:
    nodes = [PlayedNode(f"node-{number}", options.gpus) for number in range(options.nodes)]
    steady = min(options.seconds, STEADY_SECONDS)
    rows: list[dict[str, Any]] = []
    change_seconds: float | None = None
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = await _join(cluster, nodes, folder)
        leader = await asyncio.to_thread(cluster.start_operator, AGENT_ARGUMENT)
        standby = cluster.spawn_operator("standby", AGENT_ARGUMENT)
        meter = _Meter(cluster)
        kube = Kube(await load_configuration(str(cluster.kubeconfig)))
        stack.push_async_callback(kube.close)
        if "none" in options.ways:
            # The node controller takes the taints of new nodes away.
            await asyncio.sleep(2 * LEASE_SECONDS)
            rows.append(await meter.row(WAYS["none"], steady))
        if "status" in options.ways:
            fleet = _Fleet(kube, nodes, tokens, [])
            rows.append(await _settled(meter, fleet, WAYS["status"], options.seconds))
            await fleet.stop()
        if "direct" in options.ways:
            urls = [readings_url(one.log) for one in (leader, standby)]
            fleet = _Fleet(kube, nodes, tokens, urls)
            stack.push_async_callback(fleet.stop)
            await until_taken(fleet.witness, urls[0], options.nodes)
            rows.append(await _settled(meter, fleet, WAYS["direct"], options.seconds))
            change_seconds = await _leader_change(cluster, standby.log, fleet, urls[1])
            await fleet.stop()
            meter.follow("operator", standby.pid)
        if "lease" in options.ways:
            leases = await _leases(kube, nodes)
            rows.append(await meter.row(WAYS["lease"], steady))
            leases.cancel()
            await asyncio.gather(leases, return_exceptions=True)
    return rows, change_seconds


async def _settled(meter: _Meter, fleet: _Fleet, way: str, seconds: float) -> dict[str, Any]:
    """After the first writes of all agents."""
    await asyncio.sleep(2 * LEASE_SECONDS)
    failed = fleet.failed
    row = await meter.row(way, seconds)
    return {**row, "failed_writes": fleet.failed - failed}


async def _join(cluster: LocalCluster, nodes: list[PlayedNode], folder: Path) -> list[Path]:
    """Node objects, an agent's pod on each, and the pods' tokens as the kubelets would get them."""
    slots, joined = asyncio.Semaphore(PODS_AT_ONCE), 0

    async def one(node: PlayedNode) -> Path:
        nonlocal joined
        async with slots:
            token = await asyncio.to_thread(_join_one, cluster, node.name, folder)
        joined += 1
        if joined % PROGRESS_NODES == 0 or joined == len(nodes):
            say(f"{joined} of {len(nodes)} nodes joined")
        return token

    return list(await asyncio.gather(*(one(node) for node in nodes)))


def node_manifest(name: str) -> dict[str, Any]:
    """A node that is ready, or the node controller would write that it is not."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"gpujob.dev/managed": "true"}},
        "status": {"conditions": [ready | {"lastHeartbeatTime": now, "lastTransitionTime": now}]},
    }


def _join_one(cluster: LocalCluster, node: str, folder: Path) -> Path:
    client = cluster.client()
    client.create("/api/v1/nodes", node_manifest(node))
    return write_token(client, node, folder)


async def until_taken(
    witness: Witness,
    url: str,
    nodes: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    poll_seconds: float = 0.01,
    limit_seconds: float = CONNECT_SECONDS_MAX,
) -> None:
    """Returns once the operator has taken a reading of each node. Raises `TimeoutError`."""
    started = said = clock()
    while (taken := len(witness.nodes.get(url, ()))) < nodes:
        now = clock()
        if now - started > limit_seconds:
            raise TimeoutError(f"readings of {taken} of {nodes} nodes after {limit_seconds:.0f} s")
        if now - said > PROGRESS_SECONDS:
            say(f"readings of {taken} of {nodes} nodes")
            said = now
        await asyncio.sleep(poll_seconds)


async def _leader_change(cluster: LocalCluster, log: Path, fleet: _Fleet, url: str) -> float:
    """Seconds from the moment at which the standby leads until it has a reading of each node."""
    metrics = f"{logged(log, 'metrics')}/metrics"
    cluster.kill_operator()
    say("leader killed")
    led_at = await asyncio.to_thread(_when_it_leads, metrics)
    await until_taken(fleet.witness, url, fleet.nodes)
    return time.monotonic() - led_at


def _when_it_leads(metrics: str) -> float:
    while True:
        with urllib.request.urlopen(metrics, timeout=10) as response:
            if b"gpujob_leader 1.0" in response.read():
                return time.monotonic()
        time.sleep(0.02)


async def _leases(kube: Kube, nodes: list[PlayedNode]) -> "asyncio.Future[Any]":
    """What a heartbeat of this kind would cost instead."""

    async def renew(name: str) -> None:
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40},
        }
        lease = await kube.create(LEASES, body, SYSTEM_NAMESPACE)
        await asyncio.sleep(random.uniform(0, LEASE_SECONDS))
        while True:
            lease["spec"]["renewTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            lease = await kube.replace(LEASES, name, lease, SYSTEM_NAMESPACE)
            await asyncio.sleep(LEASE_SECONDS)

    work: list[Awaitable[None]] = [renew(node.name) for node in nodes]
    tasks = asyncio.gather(*work)
    await asyncio.sleep(LEASE_SECONDS)
    return tasks


if __name__ == "__main__":
    raise SystemExit(main())
