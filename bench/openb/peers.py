"""Other people's policies, as their authors published them, for comparison only.

Definitions follow the artifact of "Beware of Fragmentation" (USENIX ATC'23), the source of the
published rows. Node scores are integers from 0 to 100; the smallest rank wins a tie.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.openb.cluster import Cluster
from bench.openb.trace import GPU_MILLI, Integers, PodClass

# What the artifact scales by: the largest node of the cluster.
CPU_MILLI_SCALE = 128_000
GPU_MILLI_SCALE = 8_000
INFEASIBLE = -1


class Scorer(Protocol):
    """Integer scores of feasible rows, and the GPUs used on the row that won."""

    def scores(self, cluster: Cluster, rows: Integers, class_number: int) -> Integers: ...

    def gpus(self, cluster: Cluster, row: int, class_number: int) -> Sequence[int]: ...


def first_idle_gpus(cluster: Cluster, row: int, pod: PodClass) -> list[int]:
    """Exclusive pods take the first idle GPUs."""
    return np.flatnonzero(cluster.gpu_free[row] >= pod.gpu_milli)[: pod.num_gpu].tolist()


def tightest_gpu(cluster: Cluster, row: int, pod: PodClass) -> list[int]:
    """The GPU with the least remainder that holds a share pod; the first on ties."""
    free = cluster.gpu_free[row]
    return [int(np.argmin(np.where(free >= pod.gpu_milli, free, 10 * GPU_MILLI)))]


class _Packer:
    """GPUs as all policies but FGD and Random choose them."""

    def __init__(self, classes: Sequence[PodClass]) -> None:
        self.classes = classes

    def gpus(self, cluster: Cluster, row: int, class_number: int) -> Sequence[int]:
        pod = self.classes[class_number]
        choose = tightest_gpu if pod.shares else first_idle_gpus
        return choose(cluster, row, pod)


class BestFit(_Packer):
    def scores(self, cluster: Cluster, rows: Integers, class_number: int) -> Integers:
        pod = self.classes[class_number]
        cpu = (cluster.cpu_free[rows] - pod.cpu_milli) / CPU_MILLI_SCALE
        gpu = (cluster.gpu_total[rows] - pod.demand_milli) / GPU_MILLI_SCALE
        return np.floor(100 * (1 - (0.5 * cpu + 0.5 * gpu))).astype(np.int64)


class DotProduct(_Packer):
    def scores(self, cluster: Cluster, rows: Integers, class_number: int) -> Integers:
        pod = self.classes[class_number]
        cpu = (cluster.cpu_free[rows] / CPU_MILLI_SCALE) * (pod.cpu_milli / CPU_MILLI_SCALE)
        gpu = (cluster.gpu_total[rows] / GPU_MILLI_SCALE) * (pod.demand_milli / GPU_MILLI_SCALE)
        return np.floor(100 * (1 - (cpu + gpu) / 2)).astype(np.int64)


class GpuPacking(_Packer):
    """Prefers GPUs already shared, then nodes already used, then small idle nodes."""

    def scores(self, cluster: Cluster, rows: Integers, class_number: int) -> Integers:
        pod = self.classes[class_number]
        if not pod.num_gpu:
            return np.zeros(len(rows), dtype=np.int64)
        free = cluster.gpu_free[rows]
        shared = (free > 0) & (free < GPU_MILLI)
        idle = (free == GPU_MILLI).sum(axis=1)
        total = cluster.nodes.gpus[rows]
        opened = np.full(len(rows), pod.num_gpu, dtype=np.int64)
        in_use = np.zeros(len(rows), dtype=np.int64)
        if pod.shares:
            fitting = np.where(shared & (free >= pod.gpu_milli), free, 10 * GPU_MILLI)
            tightest = fitting.min(axis=1)
            opened = np.where(tightest < 10 * GPU_MILLI, 0, 1)
            in_use = np.maximum(100 - tightest * 100 // GPU_MILLI // 10, 50)
        used_node = np.maximum(50 - opened, 33)
        empty_node = np.maximum(33 - total, total)
        return np.where(opened == 0, in_use, np.where(idle == total, empty_node, used_node))


class GpuClustering(_Packer):
    """Keeps pods of one kind (a share, or a number of GPUs) together."""

    def __init__(self, classes: Sequence[PodClass]) -> None:
        super().__init__(classes)
        self._held: NDArray[np.bool_] | None = None
        self._kind = [0 if pod.shares else pod.num_gpu for pod in classes]

    def scores(self, cluster: Cluster, rows: Integers, class_number: int) -> Integers:
        pod = self.classes[class_number]
        if not pod.num_gpu:
            return np.zeros(len(rows), dtype=np.int64)
        held = self._kinds_held(cluster)[rows]
        this = held[:, self._kind[class_number]]
        kinds = held.sum(axis=1)
        base = np.select([this & (kinds == 1), this, kinds == 0], [75, 50, 25], 0)
        used = (GPU_MILLI_SCALE - cluster.gpu_total[rows]) / GPU_MILLI_SCALE
        return np.floor(25 * used).astype(np.int64) + base

    def gpus(self, cluster: Cluster, row: int, class_number: int) -> Sequence[int]:
        if self.classes[class_number].num_gpu:
            self._kinds_held(cluster)[row, self._kind[class_number]] = True
        return super().gpus(cluster, row, class_number)

    def _kinds_held(self, cluster: Cluster) -> NDArray[np.bool_]:
        if self._held is None:
            self._held = np.zeros((len(cluster.cpu_free), max(self._kind) + 1), dtype=np.bool_)
        return self._held


class Ranked:
    """A scorer as a policy: highest score, then smallest rank; with a seed, then by lot.

    Scores are kept per class and renewed only for the rows that changed since.
    """

    def __init__(
        self, classes: Sequence[PodClass], scorer: Scorer, ties_seed: int | None = None
    ) -> None:
        self._classes = classes
        self._scorer = scorer
        self._random = None if ties_seed is None else np.random.default_rng(ties_seed)
        self._scores: dict[int, Integers] = {}
        self._seen: dict[int, int] = {}

    def place(self, cluster: Cluster, class_number: int) -> tuple[int, Sequence[int]] | None:
        scores = self._renewed(cluster, class_number)
        row = int(np.argmax(scores))
        if scores[row] == INFEASIBLE:
            return None
        if self._random is not None:
            row = int(self._random.choice(np.flatnonzero(scores == scores[row])))
        return row, self._scorer.gpus(cluster, row, class_number)

    def _renewed(self, cluster: Cluster, class_number: int) -> Integers:
        scores = self._scores.get(class_number)
        if scores is None:
            scores = np.full(len(cluster.cpu_free), INFEASIBLE, dtype=np.int64)
            self._scores[class_number] = scores
            stale = _rows_of_models(cluster, self._classes[class_number])
        else:
            stale = np.flatnonzero(cluster.changed_at > self._seen[class_number])
            # A row that could not take the class never will: nothing ends here.
            stale = stale[scores[stale] != INFEASIBLE]
        self._seen[class_number] = cluster.step
        if len(stale):
            fits = cluster.fits(stale, self._classes[class_number])
            scores[stale[~fits]] = INFEASIBLE
            rows = stale[fits]
            if len(rows):
                scores[rows] = self._scorer.scores(cluster, rows, class_number)
        return scores


def _rows_of_models(cluster: Cluster, pod: PodClass) -> Integers:
    if not pod.models:
        return np.arange(len(cluster.cpu_free))
    allowed = [model in pod.models for model in cluster.nodes.models]
    return np.flatnonzero(np.array(allowed))


class Random:
    """A random feasible node and a random feasible GPU. Draws are ours, not the artifact's."""

    def __init__(self, classes: Sequence[PodClass], seed: int) -> None:
        self._classes = classes
        self._random = np.random.default_rng(seed)

    def place(self, cluster: Cluster, class_number: int) -> tuple[int, Sequence[int]] | None:
        pod = self._classes[class_number]
        rows = _rows_of_models(cluster, pod)
        rows = rows[cluster.fits(rows, pod)]
        if not len(rows):
            return None
        row = int(self._random.choice(rows))
        gpus = np.flatnonzero(cluster.gpu_free[row] >= pod.gpu_milli)
        if pod.shares:
            gpus = self._random.permutation(gpus)
        return row, gpus[: pod.num_gpu].tolist()
