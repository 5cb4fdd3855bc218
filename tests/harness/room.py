"""Whether what jobs reserve of a GPU has room there, by the statuses of GPUNodes (I1). Pure.

A placement is a decision, and so is a margin. What an agent saw a job use is a fact: the job may
reserve that, whoever is beside it. Who was placed beside it by a plan that knew of it is judged
again (`placements`).
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPU, GPUNode
from tests.harness.placements import Placements, held_bytes
from tests.harness.worker_ends import AttemptKey, WorkerEnds

# A decision may rest on a reading that was replaced while it was on its way.
READINGS_KEPT = 3


@dataclass(frozen=True, slots=True)
class _Reading:
    total_bytes: int
    driver_bytes: int
    unmanaged_bytes: int


class Room:
    """Feed it every status of a GPUNode, and every job that comes to hold a GPU as it does."""

    def __init__(self, ends: WorkerEnds) -> None:
        """`ends` knows who leads."""
        self._ends = ends
        # The peak that agents saw of each attempt, by GPU.
        self._seen_bytes: dict[tuple[AttemptKey, str], int] = {}
        self._placements = Placements()
        self._readings: dict[str, deque[_Reading]] = defaultdict(
            lambda: deque(maxlen=READINGS_KEPT)
        )

    def read(self, node: GPUNode, workers: Mapping[str, AttemptKey]) -> None:
        """`workers` are those of the pods whose job is known by then, by the pods' UIDs."""
        for gpu in node.status.gpus:
            self._see(gpu, workers)
            unmanaged = sum(p.memory_bytes for p in gpu.processes if p.pod_uid is None)
            reading = _Reading(gpu.memory_total_bytes, gpu.memory_reserved_bytes, unmanaged)
            self._readings[gpu.uuid].append(reading)

    def _see(self, gpu: GPU, workers: Mapping[str, AttemptKey]) -> None:
        used_bytes: dict[AttemptKey, int] = defaultdict(int)
        for process in gpu.processes:
            worker = workers.get(process.pod_uid or "")
            if worker is not None:
                used_bytes[worker] += process.memory_bytes
        for worker, now_bytes in used_bytes.items():
            key = worker, gpu.uuid
            self._seen_bytes[key] = max(self._seen_bytes.get(key, 0), now_bytes)

    def check_placed(self, job: GPUJob, uuid: str, tenants: list[GPUJob]) -> list[str]:
        """What is wrong with a new attempt on the GPU, where `tenants` are, the job among them.
        Unmanaged processes count, as the driver's reserve always does."""
        readings = self._readings.get(uuid)
        if not readings:
            return []
        unmanaged = min(one.unmanaged_bytes for one in readings)
        found = self._over(job, tenants, readings[-1], unmanaged)
        process = self._ends.leader_at(job.status.attempt_started_at)
        if process is not None and not found:
            room_bytes = readings[-1].total_bytes - readings[-1].driver_bytes - unmanaged
            self._placements.placed(uuid, process, job, tenants, room_bytes)
        return found

    def check_changed(
        self, before: GPUJob, job: GPUJob, uuid: str, tenants: list[GPUJob]
    ) -> list[str]:
        """What is wrong with what an attempt reserves now, after what it reserved before."""
        readings = self._readings.get(uuid)
        if not readings:
            return []
        if not self._decides_nothing(before, job, uuid):
            return self._over(job, tenants, readings[-1], 0)
        process = self._ends.leader_at(job.status.observed_at)
        return [] if process is None else self._placements.grown(uuid, process, job)

    def _over(
        self, job: GPUJob, tenants: list[GPUJob], reading: _Reading, unmanaged_bytes: int
    ) -> list[str]:
        reserved = sum(map(held_bytes, tenants))
        if reserved + reading.driver_bytes + unmanaged_bytes <= reading.total_bytes:
            return []
        text = f"{reserved} reserved + {reading.driver_bytes} driver + {unmanaged_bytes} unmanaged"
        return [f"{job.metadata.name}: {text} > {reading.total_bytes} bytes"]

    def _decides_nothing(self, before: GPUJob, job: GPUJob, uuid: str) -> bool:
        """The reservation is what it was, less, or what an agent saw the job use: a fact. Whatever
        is above that, a margin or what a worker said, is a decision."""
        held, now = before.status.reservation, job.status.reservation
        if held is None or now is None:
            return False
        seen_bytes = self._seen_bytes.get(((job.metadata.uid, job.status.attempt), uuid), 0)
        return now.memory_bytes <= max(held.memory_bytes, seen_bytes)
