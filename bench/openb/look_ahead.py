"""Queues over the product's placement rule: waiting pods are tried again, running ones may move.

Not the protocol of the published rows, which drop a pod that fits nowhere. Here it waits, and every
percent of capacity that arrives it is tried again, the largest first:

* **moves**: others move elsewhere at once for it; nobody waits who ran. At most `VICTIMS_MAX` move
  for one pod, and each at most `MOVES_MAX` times, which is the operator's `preemptionsMax`.
* **exchange**, only with `exchange=True`: a running pod goes back to the queue for a waiting one
  that asks for more of the same GPUs; within the same bounds.

Where a pod goes, new or moved, is `select.choose`. Whom to move is this file's own search: the
operator weighs lost work, of which these traces know nothing. Nobody knows what will arrive later.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.openb.cluster import Run, curve
from bench.openb.residents import Place, Pod, Residents
from bench.openb.trace import Arrivals, Nodes, PodClass, Trace

VICTIMS_MAX = 8
MOVES_MAX = 3
# Nodes on which a way is looked for, for one pod, those with the least in the way first.
NODES_TRIED = 16
# A GPU's worth of processor where the two are weighed: what the traces' nodes have of it per GPU.
CPU_MILLI_PER_GPU = 12_000
Order = Callable[[PodClass], NDArray[np.float64]]
# An exchange gains at least this much of a GPU.
GAIN_MILLI_MIN = 20


@dataclass(slots=True)
class Effort:
    """How many pods started by others' moves, how many moved, and how many went back to wait."""

    starts: int = 0
    moves: int = 0
    returned: int = 0


class LookAhead:
    """Everybody who runs or waits."""

    def __init__(self, trace: Trace, nodes: Nodes, *, exchange: bool = False) -> None:
        self.residents = Residents(trace, nodes)
        self.effort = Effort()
        self._exchange = exchange
        self._waiting: dict[int, list[Pod]] = {}
        self.moved: Counter[Pod] = Counter()
        # Rows that could take a class, until somebody starts, moves or goes.
        self._rows_for: dict[int, NDArray[np.int64]] = {}

    def arrive(self, pod: Pod) -> None:
        """Places it, or lets it wait."""
        if not self._start(pod):
            self._waiting.setdefault(pod.class_number, []).append(pod)

    def look(self) -> None:
        """Tries everybody who waits, until nothing more starts."""
        classes = self.residents.classes
        order = sorted(self._waiting, key=lambda one: (-classes[one].demand_milli, one))
        for class_number in order:
            waiting = self._waiting[class_number]
            while waiting and (self._start(waiting[0]) or self._start_by_moves(waiting[0])):
                waiting.pop(0)

    @property
    def waiting(self) -> int:
        return sum(len(pods) for pods in self._waiting.values())

    def _start(self, pod: Pod) -> bool:
        if not len(self._rows(pod.class_number)):
            return False
        place = self.residents.find(pod.class_number)
        assert place is not None, "it fits somewhere"
        self.residents.put(pod, place)
        self._rows_for.clear()
        return True

    def _rows(self, class_number: int) -> NDArray[np.int64]:
        if class_number not in self._rows_for:
            self._rows_for[class_number] = self.residents.rows_for(class_number)
        return self._rows_for[class_number]

    def _has_room_elsewhere(self, pod: Pod, row: int) -> bool:
        """Who moves leaves the node: a smaller question than whether all of them find room."""
        return bool((self._rows(pod.class_number) != row).any())

    def _start_by_moves(self, pod: Pod) -> bool:
        asked = self.residents.asks(pod)
        if not asked.num_gpu:
            return False
        if any(self._try(pod, row, gone) for row, gone in self._ways(asked, self._in_the_way)):
            return True
        return self._exchange and self._start_by_exchange(pod)

    def _start_by_exchange(self, pod: Pod) -> bool:
        """Takes the way that gains most; who went back is tried again like everybody."""
        asked = self.residents.asks(pod)
        best: tuple[int, int, frozenset[Pod]] | None = None
        for row, gone in self._ways(asked, self._largest_holes):
            gain = asked.demand_milli - sum(self.residents.asks(one).demand_milli for one in gone)
            if gain >= GAIN_MILLI_MIN and (best is None or gain > best[0]):
                best = gain, row, gone
        if best is None:
            return False
        _, row, gone = best
        for one in sorted(gone):
            self.residents.remove(one, row)
            self.moved[one] += 1
            self._waiting.setdefault(one.class_number, []).append(one)
        self._rows_for.clear()
        self.effort.returned += len(gone)
        started = self._start(pod)
        assert started, "room was made for it"
        return True

    # -- moves

    def _try(self, pod: Pod, row: int, gone: Iterable[Pod]) -> bool:
        """The pod instead of those, each of which must find another place; else all stays."""
        if not all(self._has_room_elsewhere(one, row) for one in gone):
            return False
        residents = self.residents
        left = {one: residents.remove(one, row) for one in sorted(gone)}
        came: list[tuple[Pod, int]] = []
        order = [pod, *sorted(left, key=self._largest_first)]
        for one in order:
            place = residents.find(one.class_number)
            if place is None:
                self._take_back(left, came)
                return False
            residents.put(one, place)
            came.append((one, place.row))
        self._rows_for.clear()
        self.moved.update(left.keys())
        self.effort.starts += 1
        self.effort.moves += len(left)
        return True

    def _take_back(self, left: dict[Pod, Place], came: Sequence[tuple[Pod, int]]) -> None:
        for one, row in came:
            self.residents.remove(one, row)
        for one, place in left.items():
            self.residents.put(one, place)

    def _largest_first(self, pod: Pod) -> tuple[int, int, int]:
        asked = self.residents.asks(pod)
        return -asked.demand_milli, -asked.cpu_milli, pod.number

    # -- who is in the way

    def _ways(self, asked: PodClass, order: Order) -> Iterable[tuple[int, frozenset[Pod]]]:
        rank = np.where(self.residents.allowed(asked), order(asked), np.inf)
        for row in np.argsort(rank, kind="stable")[:NODES_TRIED].tolist():
            if not np.isfinite(rank[row]):
                return
            gone = self._gone(row, asked)
            if gone and len(gone) <= VICTIMS_MAX:
                yield row, gone

    def _in_the_way(self, asked: PodClass) -> NDArray[np.float64]:
        """By row: what is missing on its best GPUs, and of processor, in thousandths of a GPU."""
        cluster = self.residents.cluster
        free = np.sort(self.residents.free_milli(), axis=1)[:, ::-1][:, : asked.num_gpu]
        missing = np.maximum(asked.gpu_milli - free, 0).sum(axis=1)
        cpu = np.maximum(asked.cpu_milli - cluster.cpu_free, 0)
        return missing + cpu * 1000 / CPU_MILLI_PER_GPU

    def _largest_holes(self, asked: PodClass) -> NDArray[np.float64]:
        """By row: what is free on its best GPUs that are in use, the most first; the processor has
        to suffice without those who would go, so that the list is short."""
        cluster = self.residents.cluster
        free = np.sort(self.residents.free_milli(), axis=1)[:, ::-1][:, : asked.num_gpu]
        short = cluster.cpu_free + asked.num_gpu * CPU_MILLI_PER_GPU < asked.cpu_milli
        return np.where(short, np.inf, -np.maximum(free, 0).sum(axis=1).astype(np.float64))

    def _gone(self, row: int, asked: PodClass) -> frozenset[Pod] | None:
        """Who must go from this node for the pod: None where it does not help or may not be."""
        residents, cluster = self.residents, self.residents.cluster
        movable = [one for one in residents.on[row] if self.moved[one] < MOVES_MAX]
        ways = sorted(
            (sum(residents.asks(one).demand_milli for one in who), len(who), gpu, who)
            for gpu in range(int(residents.nodes.gpus[row]))
            if (who := self._gone_from_gpu(row, gpu, asked, movable)) is not None
        )
        if len(ways) < asked.num_gpu:
            return None
        gone = {one for _, _, _, who in ways[: asked.num_gpu] for one in who}
        cpu = int(cluster.cpu_free[row]) - asked.cpu_milli
        memory = int(cluster.memory_free[row]) - asked.memory_mib
        cpu += sum(residents.asks(one).cpu_milli for one in gone)
        memory += sum(residents.asks(one).memory_mib for one in gone)
        for one in sorted(movable, key=self._least_gpu_for_its_processor):
            if cpu >= 0 and memory >= 0:
                break
            if one not in gone:
                gone.add(one)
                cpu += residents.asks(one).cpu_milli
                memory += residents.asks(one).memory_mib
        return frozenset(gone) if cpu >= 0 and memory >= 0 else None

    def _least_gpu_for_its_processor(self, pod: Pod) -> tuple[float, int]:
        asked = self.residents.asks(pod)
        return asked.demand_milli / max(asked.cpu_milli, 1), pod.number

    def _gone_from_gpu(
        self, row: int, gpu: int, asked: PodClass, movable: Sequence[Pod]
    ) -> tuple[Pod, ...] | None:
        """The one smallest pod that makes the room, else the largest until they do."""
        residents = self.residents
        missing = asked.gpu_milli - int(residents.cluster.gpu_free[row, gpu])
        if missing <= 0:
            return ()
        here = sorted(
            (one for one in movable if gpu in residents.on[row][one]),
            key=lambda one: (residents.asks(one).gpu_milli, one.number),
        )
        for one in here:
            if residents.asks(one).gpu_milli >= missing:
                return (one,)
        gone: list[Pod] = []
        for one in reversed(here):
            gone.append(one)
            missing -= residents.asks(one).gpu_milli
            if missing <= 0:
                return tuple(gone)
        return None


def simulate_queue(arrivals: Arrivals, queue: LookAhead) -> Run:
    """One seed. `failed` is how many still wait at the end."""
    classes, capacity = queue.residents.classes, arrivals.nodes.capacity_milli
    arrived, looked = 0, 0
    points = np.zeros((len(arrivals.pod_class), 2))
    for number, class_number in enumerate(arrivals.pod_class.tolist()):
        arrived += classes[class_number].demand_milli
        queue.arrive(Pod(number, class_number))
        percent = 100 * arrived / capacity
        if int(percent) > looked and queue.waiting:
            looked = int(percent)
            queue.look()
        points[number] = percent, round(100 * queue.residents.used_milli / capacity, 2)
    return Run(allocation_percent=curve(points), failed=queue.waiting)
