"""Gauges of the snapshot: jobs by phase, memory reserved and used by GPU."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import GPUNode
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.metrics import Metrics

# Setting thousands of gauges in every cycle is wasteful, because scrapes are less frequent.
PERIOD_SECONDS = 10.0


class Gauges:
    def __init__(self, metrics: Metrics, monotonic: Callable[[], float]) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._updated_at = float("-inf")

    def update(self, snapshot: Snapshot, now: datetime) -> None:
        """Updates jobs at once and GPUs at most every ten seconds. Series of GPUs that are gone are
        removed; a GPUNode without a node has none.
        """
        phases = Counter(job.status.phase for job in snapshot.jobs)
        for phase in JobPhase:
            self._metrics.jobs.labels(phase.value).set(phases[phase])
        moment = self._monotonic()
        if moment - self._updated_at < PERIOD_SECONDS:
            return
        self._updated_at = moment
        there = {node.name for node in snapshot.nodes}
        gpu_nodes = [node for node in snapshot.gpu_nodes if node.metadata.name in there]
        self._update_gpus(gpu_nodes, reserved_by_gpu(snapshot.jobs))
        for pool in snapshot.spot_pools:
            self._metrics.spot_node_hours.labels(pool.name).set(pool.node_hours)
            self._metrics.spot_interruptions.labels(pool.name).set(pool.interruptions)
        limit = snapshot.configuration.telemetry_stale_seconds
        seen = [node.status.observed_at for node in gpu_nodes]
        stale = [at for at in seen if at is None or (now - at).total_seconds() > limit]
        self._metrics.stale_nodes.set(len(stale))

    def _update_gpus(
        self, gpu_nodes: Iterable[GPUNode], reserved: Mapping[tuple[str, str], int]
    ) -> None:
        self._metrics.gpu_reserved.clear()
        self._metrics.gpu_used.clear()
        for node in gpu_nodes:
            name = node.metadata.name
            for gpu in node.status.gpus:
                self._metrics.gpu_reserved.labels(name, gpu.uuid).set(
                    reserved.get((name, gpu.uuid), 0)
                )
                self._metrics.gpu_used.labels(name, gpu.uuid).set(gpu.memory_used_bytes)


def reserved_by_gpu(jobs: tuple[GPUJob, ...]) -> defaultdict[tuple[str, str], int]:
    """Bytes that the attempts hold, by node and GPU UUID; 0 for any other GPU."""
    reserved: defaultdict[tuple[str, str], int] = defaultdict(int)
    for job in jobs:
        placement, reservation = job.status.placement, job.status.reservation
        if placement is None or reservation is None or job.finished:
            continue
        for worker in placement.workers:
            for uuid in worker.gpus:
                reserved[worker.node, uuid] += reservation.memory_bytes
    return reserved
