"""Fragmentation gradient descent (FGD) as published at USENIX ATC'23, for comparison only.

F(node) is the expected idle GPU that a typical pod cannot use; the score of a placement is
floor(100 * sigmoid((F before - F after) / 1000)).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.openb.cluster import Cluster
from bench.openb.peers import first_idle_gpus
from bench.openb.trace import Integers, PodClass, Trace

TYPICAL_SHARE = 0.95
# A pod that asks for no processor counts as asking for this much.
CPU_MILLI_MIN = 100


def typical_pods(trace: Trace) -> list[tuple[PodClass, float]]:
    """The most frequent requests of the whole list until 95 % of pods, weights summing to 1.

    Memory is not part of a class. Equal counts: the larger class first.
    """
    counts: dict[tuple[int, int, int, str], int] = {}
    for class_number, count in enumerate(np.bincount(trace.of_pod).tolist()):
        pod = trace.classes[class_number]
        key = (pod.cpu_milli or CPU_MILLI_MIN, pod.gpu_milli, pod.num_gpu, pod.gpu_spec)
        counts[key] = counts.get(key, 0) + count
    total = len(trace.of_pod)
    ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
    kept: list[tuple[PodClass, int]] = []
    for (cpu_milli, gpu_milli, num_gpu, gpu_spec), count in ordered:
        if sum(count for _, count in kept) >= TYPICAL_SHARE * total:
            break
        kept.append((PodClass(cpu_milli, 0, num_gpu, gpu_milli, gpu_spec), count))
    covered = sum(count for _, count in kept) / total
    # Two divisions, as in the artifact: the last bits decide ties.
    return [(pod, count / total / covered) for pod, count in kept]


class FragmentationGradientDescent:
    """Scores of FGD. A share pod tries every GPU and keeps the best, the first on ties."""

    def __init__(self, trace: Trace, nodes_models: Sequence[str]) -> None:
        typical = typical_pods(trace)
        self._classes = trace.classes
        self._weight = np.array([weight for _, weight in typical])
        self._cpu = np.array([pod.cpu_milli for pod, _ in typical])
        self._num = np.array([pod.num_gpu for pod, _ in typical])
        self._milli = np.array([pod.gpu_milli for pod, _ in typical])
        self._access = np.array(
            [
                [not pod.models or model in pod.models for pod, _ in typical]
                for model in nodes_models
            ]
        )

    def _fragmented(self, rows: Integers, cpu: Integers, gpus: Integers) -> NDArray[np.float64]:
        """F of node states: `cpu` [row], `gpus` [row, GPU]; milli of GPUs.

        Sums run class by class within each reason, and over reasons at the end, as in the
        artifact: scores lie on floor boundaries often enough for rounding to decide ties.
        """
        enough = gpus >= self._milli[:, None, None]
        hosts = enough.sum(axis=-1) >= self._num[:, None]
        served = cpu >= self._cpu[:, None]
        idle = np.maximum(gpus, 0)
        total = idle.sum(axis=-1)
        too_small = np.where(enough, 0, idle).sum(axis=-1)
        weight = self._weight[:, None]
        whole, part = weight * total, weight * too_small
        access = self._access[rows].T
        asks = (self._num > 0)[:, None]
        reasons = (
            (asks & access & ~hosts & ~served, whole),
            (asks & access & hosts & served, part),
            (asks & access & hosts & ~served, whole),
            (~asks & served, whole),
            (~asks & ~served, whole),
            (asks & ~access, whole),
        )
        lacks_gpu = asks & access & ~hosts & served
        sums = [np.where(mask, amount, 0.0) for mask, amount in reasons]
        sums[1] = np.where(lacks_gpu, whole, sums[1])
        result = np.zeros(cpu.shape)
        for amounts in sums:
            result += np.cumsum(amounts, axis=0)[-1]
        return result

    def scores(self, cluster: Cluster, rows: Integers, class_number: int) -> Integers:
        pod = self._classes[class_number]
        before = self._fragmented(rows, cluster.cpu_free[rows], cluster.gpu_free[rows])
        if pod.shares:
            return self._gpu_scores(cluster, rows, pod, before).max(axis=0)
        gpus = cluster.gpu_free[rows].copy()
        if pod.num_gpu:
            usable = gpus >= pod.gpu_milli
            gpus[usable & (np.cumsum(usable, axis=1) <= pod.num_gpu)] -= pod.gpu_milli
        after = self._fragmented(rows, cluster.cpu_free[rows] - pod.cpu_milli, gpus)
        return _score(before, after)

    def _gpu_scores(
        self, cluster: Cluster, rows: Integers, pod: PodClass, before: NDArray[np.float64]
    ) -> Integers:
        """Scores [GPU, row] of a share pod; -1 where the GPU is too full or like one before."""
        free = cluster.gpu_free[rows]
        like_before = np.tril(free[:, :, None] == free[:, None, :], -1).any(axis=2)
        at, gpu = np.nonzero((free >= pod.gpu_milli) & ~like_before)
        tried = free[at]
        tried[np.arange(len(at)), gpu] -= pod.gpu_milli
        cpu = cluster.cpu_free[rows[at]] - pod.cpu_milli
        scores = np.full(free.T.shape, -1, dtype=np.int64)
        scores[gpu, at] = _score(before[at], self._fragmented(rows[at], cpu, tried))
        return scores

    def gpus(self, cluster: Cluster, row: int, class_number: int) -> Sequence[int]:
        pod = self._classes[class_number]
        if not pod.shares:
            return first_idle_gpus(cluster, row, pod)
        rows = np.array([row])
        before = self._fragmented(rows, cluster.cpu_free[rows], cluster.gpu_free[rows])
        return [int(np.argmax(self._gpu_scores(cluster, rows, pod, before)[:, 0]))]


def _score(before: NDArray[np.float64], after: NDArray[np.float64]) -> Integers:
    return np.floor(100.0 * (1.0 / (1.0 + np.exp(-(before - after) / 1000)))).astype(np.int64)
