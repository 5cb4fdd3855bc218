"""Series of the last cycle's snapshot: jobs by phase, the use of each GPU, and each queue's GPUs,
jobs and waits.

They are computed when they are scraped. Thousands of gauges that are set in between would take a
part of each second and tens of megabytes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuqueue import DEFAULT_QUEUE
from gpujob_operator.decide.model.held_gpus import queue_of
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.waiting_time import waited_seconds
from gpujob_operator.telemetry.metrics import Metrics

NOMINAL, RESERVED = "gpujob_queue_nominal_gpus", "gpujob_queue_reserved_gpus"
PENDING, WAIT = "gpujob_queue_pending_jobs", "gpujob_queue_longest_wait_seconds"
_QUEUE_SERIES = {
    NOMINAL: "GPUs that the queue may always use; no series without a nominal quota.",
    RESERVED: "GPUs on which jobs of the queue run.",
    PENDING: "Jobs of the queue that do not run.",
    WAIT: "Waiting time of the job that has waited longest, in seconds.",
}


class Gauges(Collector):
    """Adds its series to those of `metrics`.

    Before the first cycle, as in a process that waits to lead, no node is stale and other series
    have no value. A zero would mean that there are no jobs.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._snapshot, self._at = Snapshot(), datetime.min
        self._phases: tuple[JobPhase, ...] = ()
        metrics.registry.register(self)

    def update(self, snapshot: Snapshot, now: datetime) -> None:
        """Stores the snapshot. Call it after each cycle."""
        self._snapshot, self._at, self._phases = snapshot, now, tuple(JobPhase)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the series.

        A GPUNode without a node has none. It exists until it is deleted, and an alert would never
        end.
        """
        yield self._jobs()
        yield from self._gpus()
        yield from self._queues()
        yield from self._spot_pools()
        yield self._stale_nodes()

    def _jobs(self) -> GaugeMetricFamily:
        found = GaugeMetricFamily("gpujob_jobs", "Jobs by phase.", labels=["phase"])
        phases = Counter(job.status.phase for job in self._snapshot.jobs)
        for phase in self._phases:
            found.add_metric([phase.value], phases[phase])
        return found

    def _gpus(self) -> Iterator[GaugeMetricFamily]:
        reserved = GaugeMetricFamily(
            "gpujob_gpu_memory_reserved_bytes",
            "GPU memory reserved by attempts that are not proven finished.",
            labels=["node", "gpu"],
        )
        used = GaugeMetricFamily(
            "gpujob_gpu_memory_used_bytes",
            "GPU memory in use by all processes, as the agent measured it.",
            labels=["node", "gpu"],
        )
        busy = GaugeMetricFamily(
            "gpujob_gpu_utilization_ratio",
            "How busy the GPU is with all processes, as the agent measured it.",
            labels=["node", "gpu"],
        )
        reserved_bytes = reserved_by_gpu(self._snapshot.jobs)
        for node in self._gpu_nodes():
            for gpu in node.status.gpus:
                place = node.metadata.name, gpu.uuid
                reserved.add_metric(place, reserved_bytes.get(place, 0))
                used.add_metric(place, gpu.memory_used_bytes)
                busy.add_metric(place, gpu.utilization_percent / 100)
        yield reserved
        yield used
        yield busy

    def _queues(self) -> Iterator[GaugeMetricFamily]:
        """Yields the series of existing queues, because jobs could name any number of others."""
        nominal = {queue.metadata.name: queue.spec.nominal.gpus for queue in self._snapshot.queues}
        found = {
            name: GaugeMetricFamily(name, what, labels=["queue"])
            for name, what in _QUEUE_SERIES.items()
        }
        use = use_of_queues(self._snapshot.jobs, self._at)
        for name in sorted({*nominal, DEFAULT_QUEUE} if self._phases else ()):
            gpus, pending, wait_seconds = use[name]
            found[RESERVED].add_metric([name], gpus)
            found[PENDING].add_metric([name], pending)
            found[WAIT].add_metric([name], wait_seconds)
            promised = nominal.get(name)
            if promised is not None:
                found[NOMINAL].add_metric([name], promised)
        yield from found.values()

    def _spot_pools(self) -> Iterator[GaugeMetricFamily]:
        hours = GaugeMetricFamily(
            "gpujob_spot_node_hours",
            "Node-hours of observed spot nodes, by instance type and zone.",
            labels=["pool"],
        )
        interruptions = GaugeMetricFamily(
            "gpujob_spot_interruptions",
            "Reclaimed spot nodes, by instance type and zone.",
            labels=["pool"],
        )
        for pool in self._snapshot.spot_pools:
            hours.add_metric([pool.name], pool.node_hours)
            interruptions.add_metric([pool.name], pool.interruptions)
        yield hours
        yield interruptions

    def _stale_nodes(self) -> GaugeMetricFamily:
        limit = self._snapshot.configuration.telemetry_stale_seconds
        closed = {node.name for node in self._snapshot.nodes if not node.managed}
        nodes = [node for node in self._gpu_nodes() if node.metadata.name not in closed]
        seen = [node.status.observed_at for node in nodes]
        stale = [at for at in seen if at is None or (self._at - at).total_seconds() > limit]
        what = "Nodes whose readings are too old for new placements."
        return GaugeMetricFamily("gpujob_stale_nodes", what, value=len(stale))

    def _gpu_nodes(self) -> list[GPUNode]:
        there = {node.name for node in self._snapshot.nodes}
        return [node for node in self._snapshot.gpu_nodes if node.metadata.name in there]


class QueueFigures(NamedTuple):
    gpus: int = 0
    pending: int = 0
    # The wait of the job that has waited longest.
    wait_seconds: float = 0.0


def use_of_queues(jobs: tuple[GPUJob, ...], now: datetime) -> defaultdict[str, QueueFigures]:
    """Returns the GPUs that jobs of each queue hold, and the jobs that wait in it."""
    found: defaultdict[str, QueueFigures] = defaultdict(QueueFigures)
    for job in jobs:
        if job.finished:
            continue
        name, placement = queue_of(job), job.status.placement
        gpus, pending, wait_seconds = found[name]
        if placement is None:
            waited = max(wait_seconds, waited_seconds(job, now))
            found[name] = QueueFigures(gpus, pending + 1, waited)
        else:
            gpus += sum(len(worker.gpus) for worker in placement.workers)
            found[name] = QueueFigures(gpus, pending, wait_seconds)
    return found


def reserved_by_gpu(jobs: tuple[GPUJob, ...]) -> defaultdict[tuple[str, str], int]:
    """Returns the bytes that attempts hold, by node and GPU UUID. 0 for any other GPU."""
    reserved: defaultdict[tuple[str, str], int] = defaultdict(int)
    for job in jobs:
        placement, reservation = job.status.placement, job.status.reservation
        if placement is None or reservation is None or job.finished:
            continue
        for worker in placement.workers:
            for uuid in worker.gpus:
                reserved[worker.node, uuid] += reservation.memory_bytes
    return reserved
