"""How placement and the whole cycle scale: 2,500, 5,000 and 10,000 GPUs.

    python -m bench.scale [--nodes 312,625,1250] [--pending 5000]

Simulated: nodes of 8 GPUs of 80 GiB and mixed jobs, drawn with a fixed seed; no API server. What
is timed is the product's own code, by the clock and by the processor time it took (the two part on
a machine that does other things as well). Three figures per size:

- placement: the cluster is filled with mixed jobs one at a time; time of one `choose` and `place`,
  the first evaluation of every class included;
- placement cycle: 100 changes (50 jobs end, 50 nodes are read again), then all pending jobs are
  offered in order; those of a class that was refused are not tried again;
- plan: the whole of `plan` with the pending jobs and all that run: the first time, when every
  object is new; in cycles with 100 changes (50 jobs end, 50 nodes are read again; for each job that
  started another arrives) in which all decisions are carried out and remembered; and in such cycles
  once jobs have waited for over a minute and may keep GPUs from later ones, for which the soonest
  start is looked for on every GPU. The yardstick beside it is a loop of plain Python, timed
  before each cycle: it tells how fast the machine was meanwhile.
"""

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.machine import print_result, yardstick_milliseconds
from bench.scale_cycle import Cycles
from bench.scale_nouns import gpu_node, measured_job, running_job, running_pod
from bench.table import format_table
from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.snapshot import NodeView, Snapshot
from gpujob_operator.decide.packing.arrays import NodeArrays
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.packing.request import Request
from gpujob_operator.decide.packing.score_cache import ScoreCache
from gpujob_operator.decide.packing.select import choose
from gpujob_operator.decide.packing.states import GPUState, NodeState
from gpujob_operator.garbage import collect_seldom

GIB = 1024**3
GPUS_PER_NODE = 8
GPU_MEMORY_BYTES = 80 * GIB
NODE_CPU_MILLI = 128_000
NODE_MEMORY_BYTES = 1024 * GIB
CHANGES = 100
MODEL = "A100"
LIMIT_PERCENT = 95.0
FILLED_SHARE = 0.9
REPEATS = 3
CYCLES = 12
# From then on a job may keep GPUs from later ones.
PATIENCE_SECONDS = 60.0
SEED = 1


@dataclass(frozen=True, slots=True)
class Held:
    """A job that runs: where, and what it takes."""

    row: int
    gpus: tuple[int, ...]
    request: Request


def request_classes() -> list[tuple[Request, float]]:
    """Mixed jobs with weights: shares of a GPU by measured memory and utilization, whole GPUs."""
    shared = [
        (4, 10, 2, 12),
        (8, 15, 4, 12),
        (10, 25, 4, 10),
        (14, 30, 6, 8),
        (18, 35, 8, 8),
        (24, 40, 8, 8),
        (30, 45, 10, 6),
        (40, 50, 12, 6),
        (52, 55, 12, 5),
        (64, 70, 12, 5),
    ]
    classes = [
        (Demand(cpu * 1000, memory * GIB, 1, memory * GIB, float(utilization)), float(weight))
        for memory, utilization, cpu, weight in shared
    ]
    for gpus, weight in ((1, 14.0), (2, 3.0), (4, 2.0), (8, 1.0)):
        whole = Demand(12_000 * gpus, 96 * GIB * gpus, gpus, 1, exclusive=True)
        classes.append((whole, weight))
    return [(Request(demand, utilization_limit_percent=95.0), weight) for demand, weight in classes]


def node_state(number: int, held: Sequence[Held] = ()) -> NodeState:
    """A node with the jobs on it, as the ledger of GPUs would say."""
    demands = [(one.gpus, one.request.demand) for one in held]
    return NodeState(
        name=f"node-{number:05d}",
        cpu_milli_free=NODE_CPU_MILLI - sum(demand.cpu_milli for _, demand in demands),
        memory_bytes_free=NODE_MEMORY_BYTES - sum(demand.memory_bytes for _, demand in demands),
        gpus=tuple(_gpu_state(number, gpu, demands) for gpu in range(GPUS_PER_NODE)),
    )


def _gpu_state(
    number: int, gpu: int, demands: Sequence[tuple[tuple[int, ...], Demand]]
) -> GPUState:
    here = [demand for gpus, demand in demands if gpu in gpus]
    return GPUState(
        uuid=f"GPU-{number:05d}-{gpu}",
        model=MODEL,
        memory_total_bytes=GPU_MEMORY_BYTES,
        memory_free_bytes=GPU_MEMORY_BYTES - sum(demand.gpu_memory_bytes for demand in here),
        utilization_used_percent=sum(demand.utilization_percent for demand in here),
        utilization_limit_percent=LIMIT_PERCENT,
        idle=not here,
        held_whole=any(demand.exclusive for demand in here),
    )


@dataclass(slots=True)
class Cluster:
    """A fleet being filled, with the draws that fill it."""

    arrays: NodeArrays
    mix: WorkloadMix
    requests: list[Request]
    weights: np.ndarray[Any, np.dtype[np.float64]]
    random: np.random.Generator
    score_cache: ScoreCache
    on_row: list[list[Held]]
    held: list[Held] = field(default_factory=list[Held])

    @classmethod
    def of(cls, nodes: int) -> "Cluster":
        classes = request_classes()
        weights = np.array([weight for _, weight in classes])
        mix = WorkloadMix.of({request.demand: weight for request, weight in classes})
        requests = [request for request, _ in classes]
        random = np.random.default_rng(SEED)
        arrays = NodeArrays.of(node_state(number) for number in range(nodes))
        return cls(
            arrays,
            mix,
            requests,
            weights / weights.sum(),
            random,
            ScoreCache(),
            [[] for _ in range(nodes)],
        )

    def draw(self, count: int) -> list[Request]:
        return [
            self.requests[index]
            for index in self.random.choice(len(self.requests), size=count, p=self.weights)
        ]

    def waiting_job(self, number: int) -> GPUJob:
        """One more job, drawn like the others."""
        (request,) = self.draw(1)
        return measured_job(f"late-{number}", self.requests.index(request), request.demand)

    def place(self, request: Request) -> bool:
        choice = choose(self.arrays, request, self.mix, self.score_cache)
        if choice is None:
            return False
        self.arrays.place(choice.row, choice.gpus, request.allocation)
        held = Held(choice.row, choice.gpus, request)
        self.held.append(held)
        self.on_row[held.row].append(held)
        return True

    def end_one(self) -> None:
        """A random job ends, and its node's state is read again."""
        number = int(self.random.integers(len(self.held)))
        self.held[number], self.held[-1] = self.held[-1], self.held[number]
        held = self.held.pop()
        self.on_row[held.row].remove(held)
        self.renew(held.row)

    def renew(self, row: int) -> None:
        """What an observed change costs: the node's state built anew and put in its row."""
        self.arrays.renew(row, node_state(row, self.on_row[row]))


def time_placements(cluster: Cluster) -> dict[str, float]:
    """Fills the cluster with jobs for 0.9 of its GPUs; milliseconds of each placement."""
    capacity = cluster.arrays.gpu_count
    share = sum(
        weight * request.demand.gpus * request.demand.gpu_share(GPU_MEMORY_BYTES)
        for request, weight in zip(cluster.requests, cluster.weights, strict=True)
    )
    requests = cluster.draw(int(FILLED_SHARE * capacity / share))
    taken = np.zeros(len(requests))
    processor = time.process_time()
    for index, request in enumerate(requests):
        start = time.perf_counter()
        cluster.place(request)
        taken[index] = time.perf_counter() - start
    processor = time.process_time() - processor
    return {
        "placements": len(taken),
        "placement_milliseconds_mean": 1000 * float(taken.mean()),
        "placement_processor_milliseconds_mean": 1000 * processor / len(requests),
        "placement_milliseconds_p50": 1000 * float(np.percentile(taken, 50)),
        "placement_milliseconds_p99": 1000 * float(np.percentile(taken, 99)),
        "placement_milliseconds_max": 1000 * float(taken.max()),
    }


def time_cycle(cluster: Cluster, pending: int) -> dict[str, float]:
    """Best and mean of some cycles of 100 changes and `pending` jobs; milliseconds."""
    # The jobs offered before fill what is left, so that most of the queue has to wait.
    offer(cluster, cluster.draw(pending))
    taken: list[float] = []
    processor: list[float] = []
    placed = 0
    for _ in range(REPEATS):
        queue = cluster.draw(pending)
        start, processor_start = time.perf_counter(), time.process_time()
        for number in range(CHANGES):
            if number % 2 and cluster.held:
                cluster.end_one()
            else:
                cluster.renew(int(cluster.random.integers(len(cluster.arrays.names))))
        placed += offer(cluster, queue)
        taken.append(1000 * (time.perf_counter() - start))
        processor.append(1000 * (time.process_time() - processor_start))
    return {
        "pending": pending,
        "changes": CHANGES,
        "placed_per_cycle": placed / REPEATS,
        "placement_cycle_milliseconds_mean": sum(taken) / len(taken),
        "placement_cycle_processor_milliseconds_mean": sum(processor) / len(processor),
        "placement_cycle_milliseconds_max": max(taken),
    }


def offer(cluster: Cluster, queue: Sequence[Request]) -> int:
    """One pass over the queue; how many found a place."""
    refused: set[Request] = set()
    placed = 0
    for request in queue:
        if request in refused:
            continue
        if cluster.place(request):
            placed += 1
        else:
            refused.add(request)
    return placed


def time_plan(cluster: Cluster, pending: int) -> dict[str, float]:
    """`plan` as an operator calls it, on the cluster as it stands with `pending` more jobs."""
    tracemalloc.start()
    snapshot = snapshot_of(cluster, cluster.draw(pending))
    snapshot_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # As the operator does when it starts.
    collect_seldom()
    cycles = Cycles(snapshot, running_pod, cluster.waiting_job, pending)
    _, first, _ = cycles.step()
    cycles.settle(CHANGES)
    row = {
        "snapshot_megabytes": snapshot_bytes / 1e6,
        "running_jobs": len(cluster.held),
        "plan_first_milliseconds": first,
    }
    row |= _time_cycles(cycles, "plan")
    cycles.wait(PATIENCE_SECONDS, CHANGES)
    return row | _time_cycles(cycles, "plan_for_patient_jobs")


def _time_cycles(cycles: Cycles, name: str) -> dict[str, float]:
    taken: list[float] = []
    processor: list[float] = []
    yardstick: list[float] = []
    items = 0
    for _ in range(CYCLES):
        cycles.change(CHANGES)
        yardstick.append(yardstick_milliseconds())
        decided, milliseconds, processor_milliseconds = cycles.step()
        items += len(decided.items)
        taken.append(milliseconds)
        processor.append(processor_milliseconds)
    return {
        f"{name}_items_per_cycle": items / CYCLES,
        f"{name}_milliseconds_median": statistics.median(taken),
        f"{name}_processor_milliseconds_median": statistics.median(processor),
        f"{name}_processor_milliseconds_max": max(processor),
        f"{name}_yardstick_milliseconds_median": statistics.median(yardstick),
    }


def measure(nodes: int, pending: int) -> dict[str, Any]:
    cluster = Cluster.of(nodes)
    row: dict[str, Any] = {"nodes": nodes, "gpus": cluster.arrays.gpu_count}
    row |= time_placements(cluster)
    row["fleet_megabytes"] = cluster.arrays.size_bytes / 1e6
    row |= time_cycle(cluster, pending)
    row |= time_plan(cluster, pending)
    return row


def snapshot_of(cluster: Cluster, queue: Sequence[Request]) -> Snapshot:
    """The same cluster in the operator's own nouns: running jobs with their pods, and the queue."""
    arrays = cluster.arrays
    classes = {request: number for number, request in enumerate(cluster.requests)}
    running = [
        running_job(
            f"running-{number}",
            classes[held.request],
            held.request.demand,
            arrays.names[held.row],
            [arrays.uuids[held.row][gpu] for gpu in held.gpus],
        )
        for number, held in enumerate(cluster.held)
    ]
    waiting = [
        measured_job(f"waiting-{number}", classes[request], request.demand)
        for number, request in enumerate(queue)
    ]
    return Snapshot(
        jobs=(*running, *waiting),
        pods=tuple(running_pod(job) for job in running),
        nodes=tuple(
            NodeView(
                name=name,
                cpu_milli_allocatable=NODE_CPU_MILLI,
                cpu_milli_free=int(arrays.cpu_milli_free[row]),
                memory_bytes_allocatable=NODE_MEMORY_BYTES,
                memory_bytes_free=int(arrays.memory_bytes_free[row]),
            )
            for row, name in enumerate(arrays.names)
        ),
        gpu_nodes=tuple(
            gpu_node(name, arrays.uuids[row], MODEL, GPU_MEMORY_BYTES)
            for row, name in enumerate(arrays.names)
        ),
    )


def _plan_columns(name: str) -> tuple[str, ...]:
    figures = ("items_per_cycle", "milliseconds_median")
    processor = ("processor_milliseconds_median", "processor_milliseconds_max")
    yardstick = "yardstick_milliseconds_median"
    return tuple(f"{name}_{figure}" for figure in (*figures, *processor, yardstick))


COLUMNS = (
    "nodes",
    "gpus",
    "placements",
    "placement_milliseconds_mean",
    "placement_processor_milliseconds_mean",
    "placement_milliseconds_p50",
    "placement_milliseconds_p99",
    "placement_milliseconds_max",
    "placement_cycle_milliseconds_mean",
    "placement_cycle_processor_milliseconds_mean",
    "placed_per_cycle",
    "running_jobs",
    "plan_first_milliseconds",
    *_plan_columns("plan"),
    *_plan_columns("plan_for_patient_jobs"),
    "fleet_megabytes",
    "snapshot_megabytes",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("--nodes", default="312,625,1250", help="comma list")
    parser.add_argument("--pending", type=int, default=5000)
    asked = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for nodes in (int(part) for part in asked.nodes.split(",")):
        print(f"{nodes} nodes ...", file=sys.stderr)
        rows.append(measure(nodes, asked.pending))
    shown = [{"": name, **{f"{row['gpus']} GPUs": row[name] for row in rows}} for name in COLUMNS]
    print(f"Simulated cluster, {asked.pending} pending jobs of {len(request_classes())} classes")
    print(format_table(shown, ["", *(f"{row['gpus']} GPUs" for row in rows)]))
    print_result(rows, benchmark="scale")


if __name__ == "__main__":
    main()
