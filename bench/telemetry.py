"""What agents cost the API server, by the way that their readings go: by statuses, then directly.

    python -m bench.telemetry --nodes 200 --gpus 8 --seconds 300

A real control plane and a real operator with a standby; the nodes are objects, and their agents are
the product's own in one process, with readings that are made up: half of the GPUs are busy, and on
each node the owner of a GPU changes every five minutes. Then the leader is killed. Everything
shares the machine, so compare the rows of one run and nothing else.
"""

import argparse
import asyncio
import logging
import random
import re
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.machine import print_result
from bench.played_agents import (
    AGENT_ARGUMENT,
    logged,
    node_session,
    readings_url,
    write_token,
)
from bench.table import format_table
from gpujob_api.gpunode import GPU, GPUProcess
from gpujob_api.quantities import GIB
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import ClusterOptions
from gpujob_local.cluster.setup import SYSTEM_NAMESPACE
from gpujob_operator.act.connection import load_configuration
from gpujob_operator.act.kube import LEASES, ApiError, Kube, ResourceType
from gpujob_operator.agent.direct import DirectReadings
from gpujob_operator.agent.publish import Publisher, Readiness
from gpujob_operator.agent.websocket import WebSocketConnections

COLUMNS = (
    *("way", "writes_per_second", "api_server_percent", "etcd_percent", "operator_percent"),
    "failed_writes",
)
INTERVAL_SECONDS = 2.0
LEASE_SECONDS = 10.0
CHANGE_SECONDS = 300.0
PODS_AT_ONCE = 16
READY = Readiness(True, "Measuring", "the agent reads all GPUs")
MEASURED = ("kube-apiserver", "etcd", "operator")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.telemetry", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0, help="of each way")
    options = parser.parse_args(arguments)
    logging.getLogger("gpujob_operator").setLevel(logging.ERROR)
    with LocalCluster.start(ClusterOptions(nodes=(), agents=False, operator=False)) as cluster:
        rows, change_seconds = asyncio.run(_measure(cluster, options))
    print(format_table(rows, COLUMNS))
    print(f"a new leader had the readings of all nodes after {change_seconds:.2f} s")
    print_result(rows, bench="telemetry", leader_change_seconds=change_seconds, **vars(options))
    return 0


@dataclass
class _Node:
    """What an agent reads: it changes a little all the time."""

    name: str
    gpus: int
    dice: random.Random = field(default_factory=random.Random)
    owners: list[str] = field(default_factory=list[str])

    def read(self) -> tuple[GPU, ...]:
        if not self.owners:
            self.owners = [f"pod-{self.name}-{index}" for index in range(self.gpus)]
        if self.dice.random() < INTERVAL_SECONDS / CHANGE_SECONDS:
            index = self.dice.randrange(self.gpus)
            self.owners[index] = f"pod-{self.name}-{self.dice.randrange(10**9)}"
        return tuple(self._gpu(index) for index in range(self.gpus))

    def _gpu(self, index: int) -> GPU:
        busy = index < self.gpus / 2
        used = 20 * GIB if busy else 0
        jitter = self.dice.uniform
        return GPU(
            uuid=f"GPU-{self.name}-{index}",
            index=index,
            model="NVIDIA H100 80GB HBM3",
            memory_total_bytes=80 * GIB,
            memory_used_bytes=used,
            utilization_percent=round(jitter(80, 100)) if busy else 0.0,
            power_watts=round(jitter(600, 700) if busy else jitter(70, 72)),
            energy_joules=round(time.monotonic() * 100),
            temperature_celsius=round(jitter(60, 70) if busy else jitter(30, 32)),
            processes=(GPUProcess(1000 + index, used, self.owners[index]),) if busy else (),
        )


class _Fleet:
    """The agents of all nodes, in this process."""

    def __init__(self, kube: Kube, nodes: list[_Node], tokens: list[Path], urls: list[str]) -> None:
        self._nodes = nodes
        self._connections = [
            WebSocketConnections(token, node_session(number)) for number, token in enumerate(tokens)
        ]
        self.failed = 0
        connects = [one.connect for one in self._connections] if urls else []
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
    """Processor seconds of the parts, and writes."""

    def __init__(self, cluster: LocalCluster) -> None:
        children = cluster.control_plane.children | cluster.children
        self._processes = {name: psutil.Process(children[name].pid) for name in MEASURED}
        self.writes = 0

    def wrote(self, kind: ResourceType) -> None:
        self.writes += 1

    def follow(self, name: str, pid: int) -> None:
        """Another process does the part's work now."""
        self._processes[name] = psutil.Process(pid)

    async def row(self, way: str, seconds: float) -> dict[str, Any]:
        before, writes, started = self._used(), self.writes, time.monotonic()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - started
        used = {name: value - before[name] for name, value in self._used().items()}
        api = used["kube-apiserver"]
        return {
            "way": way,
            "writes_per_second": round((self.writes - writes) / passed, 2),
            "api_server_percent": round(100 * api / passed, 2),
            "etcd_percent": round(100 * used["etcd"] / passed, 2),
            "operator_percent": round(100 * used["operator"] / passed, 2),
        }

    def _used(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, process in self._processes.items():
            times = process.cpu_times()
            found[name] = times.user + times.system
        return found


async def _measure(
    cluster: LocalCluster, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], float]:
    nodes = [_Node(f"node-{number}", options.gpus) for number in range(options.nodes)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = await _join(cluster, nodes, folder)
        leader = await asyncio.to_thread(cluster.start_operator, AGENT_ARGUMENT)
        standby = cluster.spawn_operator("standby", AGENT_ARGUMENT)
        meter = _Meter(cluster)
        kube = Kube(await load_configuration(str(cluster.kubeconfig)), meter.wrote)
        stack.push_async_callback(kube.close)
        rows = [await meter.row("no agents", min(options.seconds, 60.0))]
        fleet = _Fleet(kube, nodes, tokens, [])
        rows.append(await _settled(meter, fleet, "status", options.seconds))
        await fleet.stop()
        urls = [readings_url(one.log) for one in (leader, standby)]
        fleet = _Fleet(kube, nodes, tokens, urls)
        stack.push_async_callback(fleet.stop)
        rows.append(await _settled(meter, fleet, "direct", options.seconds))
        change_seconds = await _leader_change(cluster, standby.log, options.nodes)
        await fleet.stop()
        leases = await _leases(kube, nodes)
        meter.follow("operator", standby.pid)
        rows.append(await meter.row("a Lease in 10 s", min(options.seconds, 60.0)))
        leases.cancel()
        await asyncio.gather(leases, return_exceptions=True)
    return rows, change_seconds


async def _settled(meter: _Meter, fleet: _Fleet, way: str, seconds: float) -> dict[str, Any]:
    """After the first writes of all agents."""
    await asyncio.sleep(2 * LEASE_SECONDS)
    failed = fleet.failed
    row = await meter.row(way, seconds)
    return {**row, "failed_writes": fleet.failed - failed}


async def _join(cluster: LocalCluster, nodes: list[_Node], folder: Path) -> list[Path]:
    """Node objects, an agent's pod on each, and the pods' tokens as the kubelets would get them."""
    slots = asyncio.Semaphore(PODS_AT_ONCE)

    async def one(node: _Node) -> Path:
        async with slots:
            return await asyncio.to_thread(_join_one, cluster, node.name, folder)

    return list(await asyncio.gather(*(one(node) for node in nodes)))


def _join_one(cluster: LocalCluster, node: str, folder: Path) -> Path:
    client = cluster.client()
    labels = {"gpujob.dev/managed": "true"}
    body: dict[str, Any] = {"metadata": {"name": node, "labels": labels}}
    client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **body})
    return write_token(client, node, folder)


async def _leader_change(cluster: LocalCluster, log: Path, nodes: int) -> float:
    """Seconds from the moment at which the standby leads until it has a reading of each node."""
    metrics = f"{logged(log, 'metrics')}/metrics"
    cluster.kill_operator()
    led_at = 0.0
    while True:
        text = await asyncio.to_thread(_read, metrics)
        if not led_at and "gpujob_leader 1.0" in text:
            led_at = time.monotonic()
        found = re.search(r'^gpujob_readings_total\{result="accepted"\} (\S+)', text, re.M)
        connected = re.search(r"^gpujob_agent_connections (\S+)", text, re.M)
        if led_at and found and connected and float(found[1]) >= nodes <= float(connected[1]):
            return time.monotonic() - led_at
        await asyncio.sleep(0.02)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


async def _leases(kube: Kube, nodes: list[_Node]) -> "asyncio.Future[Any]":
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
