"""Tiresias with tuned gangs, as published there: two queues by attained service, first come first.

A job sinks when seconds held x GPUs pass 16 GPU-hours. What fits by number of GPUs runs; running
jobs stay where they are; new ones take the nodes with most free GPUs.
"""

from collections.abc import Mapping, Sequence

from bench.pollux.cluster import GPUS_PER_NODE, NODES, GangJob

_SINK_GPU_SECONDS = 3600 * 16


class Tiresias:
    """Keeps its queues between allocations."""

    def __init__(self) -> None:
        self._queues: tuple[list[str], list[str]] = ([], [])
        self._held: dict[str, int] = {}
        self._running: set[str] = set()
        self._checked = 0

    def allocate(self, jobs: Sequence[GangJob], now: int) -> Mapping[str, tuple[int, ...]]:
        known = {job.name: job for job in jobs}
        self._update_queues(known, now - self._checked)
        self._checked = now
        order = [known[name] for queue in self._queues for name in queue]
        chosen: list[GangJob] = []
        left = NODES * GPUS_PER_NODE
        for job in order:
            if job.gpus <= left:
                left -= job.gpus
                chosen.append(job)
        self._running = {job.name for job in chosen}
        return _spread(chosen)

    def _update_queues(self, known: Mapping[str, GangJob], elapsed: int) -> None:
        first, second = self._queues
        first[:] = [name for name in first if name in known]
        second[:] = [name for name in second if name in known]
        first += [name for name in known if name not in self._held]
        for name, job in known.items():
            self._held.setdefault(name, 0)
            if name not in self._running:
                continue
            self._held[name] += elapsed
            if name in first and self._held[name] * job.gpus >= _SINK_GPU_SECONDS:
                first.remove(name)
                second.append(name)


def _spread(chosen: Sequence[GangJob]) -> dict[str, tuple[int, ...]]:
    free = dict.fromkeys(range(NODES), GPUS_PER_NODE)
    for job in chosen:
        for node in job.allocation:
            free[node] -= 1
    allocations: dict[str, tuple[int, ...]] = {}
    for job in chosen:
        allocations[job.name] = job.allocation or _take_freest(free, job.gpus)
    return allocations


def _take_freest(free: dict[int, int], gpus: int) -> tuple[int, ...]:
    taken: list[int] = []
    while len(taken) < gpus:
        node = max(free, key=lambda index: (free[index], -index))
        count = min(free[node], gpus - len(taken))
        taken += [node] * count
        free[node] -= count
    return tuple(taken)
