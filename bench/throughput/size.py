"""What a large cluster costs: 10,000 jobs on 1,000 nodes, of which 8,000 run, and nothing changes.

    python -m bench.throughput.size [--jobs 10000] [--nodes 1000] [--gpus 8] [--quiet-seconds 60]
                                    [--restarts 3]

The processes are those of `bench.throughput`, but pods run until they are deleted. All jobs come at
once. When as many are bound as GPUs are there, and the operator has written what it had to write,
CPU and writes of `--quiet-seconds` are counted. Then the operator is stopped, which gives its Lease
back, and started again, `--restarts` times, each once all agents have found the last one and it
writes nothing: `first_snapshot_seconds` are those from the start of its process until it has a
snapshot of everything and begins to decide, `first_cycle_seconds` those until it has ended that
cycle and writes what it has decided; in the median.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.machine import print_result
from bench.table import format_table
from bench.throughput.__main__ import NAMESPACES, positive, since
from bench.throughput.figures import Process, difference, writes_by_kind
from bench.throughput.load import GPUJOBS, Load, Run
from bench.throughput.products import OperatorAndAgents
from bench.throughput.progress import say, wait_until
from bench.throughput.stack import Stack, processes_between, start_cluster
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import Kube
from gpujob_operator.supervision import background

NAMESPACE = "size"
# The operator has written nothing for so long.
SETTLED_SECONDS = 10.0
SETTLE_SECONDS_MAX = 600.0
GOALS = {"operator_mb": 300.0, "quiet_operator_percent": 20.0, "first_snapshot_seconds": 10.0}
_MB_OF_MIB = 1024**2 / 1e6


@dataclass(frozen=True, slots=True)
class Quiet:
    """What was taken and written while nothing changed."""

    seconds: float
    processes: Mapping[str, Process]
    writes: Mapping[str, int]

    def percent(self, process: str) -> float:
        """Of one core."""
        return 100 * self.processes[process].cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds from the start of the next operator's process."""

    first_snapshot_seconds: float
    first_cycle_seconds: float


@dataclass(frozen=True, slots=True)
class Size:
    """What one run found."""

    jobs: int
    bound: int
    bound_seconds: float
    quiet: Quiet
    restarts: Sequence[Restart]
    peak_mib: Mapping[str, float]

    def figures(self) -> dict[str, float]:
        """By name, in the order of the table."""
        return {
            "jobs": self.jobs,
            "bound": self.bound,
            "bound_seconds": self.bound_seconds,
            "operator_mb": self.peak_mib["operator"] * _MB_OF_MIB,
            "kube-apiserver_mb": self.peak_mib["kube-apiserver"] * _MB_OF_MIB,
            "quiet_operator_percent": self.quiet.percent("operator"),
            "quiet_kube-apiserver_percent": self.quiet.percent("kube-apiserver"),
            "quiet_etcd_percent": self.quiet.percent("etcd"),
            "quiet_writes_per_second": sum(self.quiet.writes.values()) / self.quiet.seconds,
            "first_snapshot_seconds": statistics.median(
                one.first_snapshot_seconds for one in self.restarts
            ),
            "first_cycle_seconds": statistics.median(
                one.first_cycle_seconds for one in self.restarts
            ),
        }


def figure_rows(figures: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row a figure, and its goal where it has one: at most so much."""
    return [
        {"figure": name, "value": value, "at_most": GOALS.get(name)}
        for name, value in figures.items()
    ]


async def fill(stack: Stack, kube: Kube, options: argparse.Namespace) -> tuple[int, float]:
    """Submits the jobs. Returns how many are bound, and after how long."""
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await asyncio.to_thread(stack.client.create, NAMESPACES, head)
    load = Load(options.jobs, limit_seconds=options.limit_seconds)
    run, start = Run(kube, GPUJOBS, load, NAMESPACE), time.monotonic()
    fit = min(options.jobs, options.nodes * options.gpus)
    async with asyncio.timeout(options.limit_seconds), background(run.run(say)):
        await run.until_bound(fit)
    return fit, time.monotonic() - start


async def settle(stack: Stack) -> None:
    """Returns once the operator has written nothing for a while."""
    written, since_when = -1.0, time.monotonic()

    def settled() -> bool:
        nonlocal written, since_when
        series = stack.operator_series()
        now = sum(n for (name, _), n in series.items() if name == "gpujob_writes_total")
        if now != written:
            written, since_when = now, time.monotonic()
        return time.monotonic() - since_when >= SETTLED_SECONDS

    what = f"{SETTLED_SECONDS:.0f} s without a write of the operator"
    await wait_until(settled, what, stack, limit_seconds=SETTLE_SECONDS_MAX)


async def stay_quiet(stack: Stack, seconds: float) -> Quiet:
    """Counts for so long."""
    processes, requests, start = stack.processes(), stack.requests(), time.monotonic()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(stack.check)
    took = processes_between(processes, stack.processes())
    writes = writes_by_kind(difference(stack.requests(), requests))
    return Quiet(time.monotonic() - start, took, writes)


async def restart(stack: Stack) -> Restart:
    """Stops the operator as a Deployment does, and starts another."""
    await asyncio.to_thread(stack.stop_operator)
    started_at = time.monotonic()
    await asyncio.to_thread(stack.spawn_operator)
    # Before that its metrics may not be there yet.
    await since(started_at, stack.operator_is_ready, stack)
    first_cycle_seconds = await since(started_at, stack.has_decided, stack)
    return Restart(first_cycle_seconds - stack.cycle_seconds(), first_cycle_seconds)


async def restarts(stack: Stack, count: int) -> list[Restart]:
    """One after the other. Agents that look for the operator all the time would be a load that no
    cluster has before its operator is stopped."""
    found: list[Restart] = []
    for number in range(1, count + 1):
        agents = f"{stack.nodes} agents connected"
        await wait_until(lambda: stack.connected_agents() >= stack.nodes, agents, stack)
        await settle(stack)
        say(f"restarting the operator, {number} of {count}")
        found.append(await restart(stack))
    return found


async def run(stack: Stack, options: argparse.Namespace) -> Size:
    kube = Kube(await load_configuration(str(stack.cluster.kubeconfig)))
    try:
        await asyncio.to_thread(stack.start_nodes)
        await wait_until(lambda: stack.ready_nodes() >= stack.nodes, "ready nodes", stack)
        await OperatorAndAgents(stack).start()
        say(f"{stack.nodes} nodes ready and measured")
        bound, seconds = await fill(stack, kube, options)
        say(f"{bound} bound after {seconds:.1f} s; waiting until the operator writes nothing")
        await settle(stack)
        say(f"counting for {options.quiet_seconds:.0f} s")
        quiet = await stay_quiet(stack, options.quiet_seconds)
        restarted = await restarts(stack, options.restarts)
        peaks = {name: one.peak_mib for name, one in stack.processes().items()}
        return Size(options.jobs, bound, seconds, quiet, restarted, peaks)
    finally:
        await kube.close()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.throughput.size", description=text)
    add = parser.add_argument
    add("--jobs", type=positive, default=10_000, help="of one GPU (%(default)s)")
    add("--nodes", type=positive, default=1_000, help="played nodes (%(default)s)")
    add("--gpus", type=positive, default=8, help="GPUs of a node (%(default)s)")
    add("--quiet-seconds", type=float, default=60.0, help="that are counted (%(default)s)")
    add("--restarts", type=positive, default=3, help="of the operator (%(default)s)")
    add("--limit-seconds", type=float, default=1800.0, help="until all are bound (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with start_cluster(say) as cluster:
        stack = Stack(cluster, options.nodes, options.gpus, pods_end=False)
        found = asyncio.run(run(stack, options))
    figures = found.figures()
    print("A large cluster; kubelets are played by kwok, agents by one process")
    print(format_table(figure_rows(figures), ["figure", "value", "at_most"]))
    writes = [
        {"writes": kind, "per_second": count / found.quiet.seconds}
        for kind, count in sorted(found.quiet.writes.items(), key=lambda one: -one[1])
    ]
    print("\nWrites while nothing changed, whoever made them")
    print(format_table(writes, ["writes", "per_second"]))
    restarted = [{"restart": n, **asdict(one)} for n, one in enumerate(found.restarts, 1)]
    print("\nRestarts of the operator, seconds from the start of its process")
    print(format_table(restarted, list(restarted[0])))
    print_result([figures], options=vars(options), quiet_writes=writes, restarts=restarted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
