"""The measured use of every attempt on its GPUs, accumulated from the agents' readings.

Only observed readings count. After a restart of the operator, accumulation starts again, and the
job's status keeps the earlier values.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpunode import GPU, GPUNode, GPUProcess
from gpujob_operator.decide.model.held_gpus import EXTERNAL_NOISE_BYTES, context_bytes
from gpujob_operator.decide.model.snapshot import GPUUsage, PodView, SeenGPUs

AttemptKey = tuple[str, int]
# Returns the worker pod with a UID, or None for any other pod.
PodOf = Callable[[str], PodView | None]

# The agent publishes an unchanged reading every fifth time. A longer interval is a gap, not
# readings.
READINGS_PER_STATUS_MAX = 5
# Utilization is the largest decaying mean (its memory is 30 s) in the last 4 to 5 min, at a reading
# in 2 s. A pause is over within these minutes, or it lasts.
MEAN_SAMPLES = 15
PART_SAMPLES = 30
PARTS = 5


@dataclass(slots=True)
class _Utilization:
    """The utilization of a GPU by an attempt: a mean, and its maximum in each part."""

    samples: int = 0
    # Since a reading that may be lower than what the attempt would use alone.
    undisturbed_samples: int = 0
    _mean_percent: float = 0.0
    _maxima: deque[float] = field(default_factory=lambda: deque[float](maxlen=PARTS))
    _in_part: int = PART_SAMPLES

    def add(self, percent: float, samples: int, *, disturbed: bool) -> None:
        self.samples += samples
        self.undisturbed_samples = 0 if disturbed else self.undisturbed_samples + samples
        weight = min(1.0, samples / min(self.samples, MEAN_SAMPLES))
        self._mean_percent += (percent - self._mean_percent) * weight
        if self._in_part >= PART_SAMPLES:
            self._maxima.append(0.0)
            self._in_part = 0
        self._in_part += samples
        self._maxima[-1] = max(self._maxima[-1], self._mean_percent)

    @property
    def percent(self) -> float:
        return max(self._maxima, default=0.0)

    @property
    def may_fall(self) -> bool:
        return self.undisturbed_samples >= PARTS * PART_SAMPLES


@dataclass(slots=True)
class _GPU:
    memory_peak_bytes: int = 0
    # In the newest reading.
    memory_bytes: int = 0
    context_bytes: int = 0
    start_up: _Utilization = field(default_factory=_Utilization)
    # None before the start-up has ended.
    steady: _Utilization | None = None
    # The next reading covers a time before the start-up ended.
    skips: bool = False

    def add(
        self, memory_bytes: list[int], utilization_percent: float, samples: int, *, disturbed: bool
    ) -> None:
        """Adds a reading. `memory_bytes` is by process."""
        self.memory_bytes = sum(memory_bytes)
        self.memory_peak_bytes = max(self.memory_peak_bytes, self.memory_bytes)
        self.context_bytes = max(self.context_bytes, context_bytes(memory_bytes))
        if not self.skips:
            counted = self.start_up if self.steady is None else self.steady
            counted.add(utilization_percent, samples, disturbed=disturbed)
        self.skips = False

    def start_up_ended(self) -> None:
        if self.steady is not None and self.steady.samples:
            self.start_up = self.steady
        self.steady = _Utilization()
        self.skips = True


@dataclass(slots=True)
class _Attempt:
    gpus: dict[str, _GPU] = field(default_factory=dict[str, _GPU])
    # The worker's GPUs in the newest reading of its node, by rank.
    seen: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    # The nodes on which it was seen, with the time since which their readings do not show it.
    nodes: dict[str, datetime | None] = field(default_factory=dict[str, datetime | None])
    ready: bool = False
    settled: bool = False
    # A service computes as much as its requests ask for, whoever else is on its GPU.
    serves: bool = False
    # Whether this process saw the start-up, so that a lower figure is no pause of the job.
    began_here: bool = False
    # The object stays the same until the next reading, which shows the planner that nothing
    # changed.
    _usage: GPUUsage | None = None

    def add(
        self,
        uuid: str,
        memory_bytes: list[int],
        utilization_percent: float,
        samples: int,
        *,
        alone: bool,
    ) -> None:
        gpu = self.gpus.setdefault(uuid, _GPU())
        disturbed = not (alone or self.serves)
        gpu.add(memory_bytes, utilization_percent, samples, disturbed=disturbed)
        self._usage = None

    def looked_for(self, node: str, at: datetime, *, found: bool) -> bool:
        """Records whether the node's reading of this time shows any of its processes.

        Returns whether that changed.
        """
        since = None if found else self.nodes.get(node) or at
        if self.nodes.get(node, at) == since:
            return False
        self.nodes[node] = since
        self._usage = None
        return True

    def _absent_since(self) -> datetime | None:
        moments = [since for since in self.nodes.values() if since is not None]
        return max(moments) if moments and len(moments) == len(self.nodes) else None

    def _steady(self) -> list[_Utilization]:
        """Returns the utilization of each GPU that was used after the start-up."""
        return [one.steady for one in self.gpus.values() if one.steady and one.steady.samples]

    def start_up_ended(self, *, began_here: bool) -> None:
        self.began_here = began_here
        for gpu in self.gpus.values():
            gpu.start_up_ended()
        self._usage = None

    def usage(self) -> GPUUsage:
        if self._usage is None:
            gpus, steady = self.gpus.values(), self._steady()
            # A short job has no readings but those of its start-up.
            counted = steady or [gpu.start_up for gpu in gpus]
            first = bool(steady) and self.began_here
            first = first and all(one.samples <= PART_SAMPLES for one in steady)
            self._usage = GPUUsage(
                memory_peak_bytes=max(gpu.memory_peak_bytes for gpu in gpus),
                utilization_percent=round(max(one.percent for one in counted), 1),
                samples=max(one.samples for one in counted),
                context_bytes=max(gpu.context_bytes for gpu in gpus),
                seen=tuple(SeenGPUs(rank, self.seen[rank]) for rank in sorted(self.seen)),
                memory_bytes=max(gpu.memory_bytes for gpu in gpus),
                may_fall=first or all(one.may_fall for one in counted),
                is_of_start_up=not steady,
                absent_since=self._absent_since(),
            )
        return self._usage


class MeasuredUsage:
    """Peaks and means by attempt. Bounded by the attempts that have a pod or a live job."""

    def __init__(self) -> None:
        self._attempts: dict[AttemptKey, _Attempt] = {}
        self._seen_at: dict[str, datetime] = {}
        # The attempts that were ever seen on a node.
        self._on_node: dict[str, set[AttemptKey]] = {}
        self._view: Mapping[AttemptKey, GPUUsage] | None = None

    def observe(self, node: GPUNode, pod_of: PodOf) -> bool:
        """Adds one published status. Returns whether it changed a worker's use.

        Statuses come in the order in which they were written. Their times only distinguish a new
        reading from the last one, because an agent's clock may be set back.
        """
        observed_at = node.status.observed_at
        before = self._seen_at.get(node.metadata.name)
        if observed_at is None or observed_at == before:
            return False
        self._seen_at[node.metadata.name] = observed_at
        interval = node.status.sample_interval_seconds
        samples = _readings(before, observed_at, interval)
        changed = False
        here = pods_on(node.metadata.name, pod_of)
        for gpu in node.status.gpus:
            changed |= self._observe_gpu(gpu, here, samples)
        self._observe_places(node, here)
        return changed

    def _observe_places(self, node: GPUNode, pod_of: PodOf) -> None:
        """Records on which GPUs each worker was seen."""
        found: dict[tuple[AttemptKey, int], dict[str, None]] = {}
        for gpu in node.status.gpus:
            for process in gpu.processes:
                pod = pod_of(process.pod_uid or "")
                if pod is not None:
                    key = (pod.job_uid, pod.attempt), pod.rank
                    found.setdefault(key, {})[gpu.uuid] = None
        for (key, rank), gpus in found.items():
            self._attempts[key].seen[rank] = tuple(gpus)
        name, at = node.metadata.name, node.status.observed_at
        there = {key for key, _ in found}
        before = self._on_node.get(name, set())
        if at is None or not (there or before):
            return
        known = (there | before) & self._attempts.keys()
        self._on_node[name] = known
        changes = [self._attempts[key].looked_for(name, at, found=key in there) for key in known]
        if any(changes):
            self._view = None

    def usage(self) -> Mapping[AttemptKey, GPUUsage]:
        """Returns the use of all attempts. The object stays the same until something changes."""
        if self._view is None:
            self._view = {key: attempt.usage() for key, attempt in self._attempts.items()}
        return self._view

    def settled(self, key: AttemptKey, *, serves: bool, began_here: bool = True) -> None:
        """Records that the attempt's reports show its final use. Later readings count.

        Without reports, those since the pod became ready count. `began_here` means that the
        readings before were those of a start-up.
        """
        attempt = self._attempts.get(key)
        if attempt is None or attempt.settled:
            return
        attempt.settled, attempt.serves = True, serves
        attempt.start_up_ended(began_here=began_here)
        self._view = None

    def keep_only(self, attempts: set[AttemptKey], nodes: set[str]) -> None:
        """Drops attempts and nodes that no longer exist."""
        for key in self._attempts.keys() - attempts:
            del self._attempts[key]
            self._view = None
        for name in self._seen_at.keys() - nodes:
            del self._seen_at[name]
            self._on_node.pop(name, None)

    def _observe_gpu(self, gpu: GPU, pod_of: PodOf, samples: int) -> bool:
        groups: dict[AttemptKey, list[GPUProcess]] = {}
        ready: set[AttemptKey] = set()
        pods, others_bytes = set[str](), 0
        for process in gpu.processes:
            pod = pod_of(process.pod_uid or "")
            if pod is None:
                others_bytes += process.memory_bytes
            else:
                pods.add(pod.uid)
                groups.setdefault((pod.job_uid, pod.attempt), []).append(process)
                ready |= {(pod.job_uid, pod.attempt)} if pod.ready else set()
        # A display that is idle disturbs nobody.
        alone = len(pods) == 1 and others_bytes <= EXTERNAL_NOISE_BYTES
        for key, processes in groups.items():
            memory_bytes = [process.memory_bytes for process in processes]
            utilization = _utilization(gpu, processes, alone=alone)
            attempt = self._attempts.setdefault(key, _Attempt())
            if key in ready and not attempt.ready:
                attempt.ready = True
                if not attempt.settled:
                    attempt.start_up_ended(began_here=bool(attempt.gpus))
            attempt.add(gpu.uuid, memory_bytes, utilization, samples, alone=alone)
            self._view = None
        return bool(groups)


def pods_on(node: str, pod_of: PodOf) -> PodOf:
    """Returns `pod_of`, restricted to the node's own pods.

    An agent may only report about the pods of its node, and it could name any pod.
    """

    def pod_here(uid: str) -> PodView | None:
        pod = pod_of(uid)
        return pod if pod is not None and pod.node == node else None

    return pod_here


def _readings(before: datetime | None, now: datetime, interval_seconds: float) -> int:
    """Returns how many readings a status stands for, because the agent writes only changes."""
    if before is None or interval_seconds <= 0:
        return 1
    passed = (now - before).total_seconds() / interval_seconds
    return max(1, min(READINGS_PER_STATUS_MAX, round(passed)))


def _utilization(gpu: GPU, processes: list[GPUProcess], *, alone: bool) -> float:
    """Returns the sum over the attempt's processes.

    If the driver does not report utilization by process, it is the GPU's utilization.
    """
    known = [one.utilization_percent for one in processes if one.utilization_percent is not None]
    if alone or not known:
        return gpu.utilization_percent
    return min(100.0, sum(known))
