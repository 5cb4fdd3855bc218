"""Readings of the shared device, taken as the agent takes them, and what a span of time had."""

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpujob_operator.agent.owners import owner_by_environment
from gpujob_operator.agent.session import NvmlSession

INTERVAL_SECONDS = 0.25
MOMENTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading. `pods` has the memory of each pod's processes, by its UID."""

    at: float
    utilization_percent: float
    memory_bytes: int
    watts: float | None
    joules: float | None
    pods: dict[str | None, int] = field(default_factory=dict[str | None, int])


@dataclass(frozen=True, slots=True)
class Span:
    """What the readings between two times had."""

    seconds: float
    utilization_percent: float
    watts: float | None
    joules: float | None
    memory_peak_bytes: int
    pod_peak_bytes: dict[str | None, int]


class Meter:
    """Reads in a thread. `failure` is NVML's last error."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._session = NvmlSession(nvml, owner_by_environment())
        self._uuid = uuid
        self._moments: list[Moment] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self.failure = ""

    def __enter__(self) -> "Meter":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=10)
        self._session.close()

    def span(self, start: float, end: float) -> Span:
        with self._lock:
            moments = [moment for moment in self._moments if start <= moment.at <= end]
        return span_of(moments)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            try:
                self._read()
            except self._session.nvml.NVMLError as error:
                self.failure = str(error)

    def _read(self) -> None:
        gpus = {gpu.uuid: gpu for gpu in self._session.read().gpus}
        # Each moment is of its own.
        self._session.published()
        gpu = gpus.get(self._uuid)
        if gpu is None:
            return
        pods: dict[str | None, int] = {}
        for process in gpu.processes:
            pods[process.pod_uid] = pods.get(process.pod_uid, 0) + process.memory_bytes
        moment = Moment(
            time.monotonic(), gpu.utilization_percent, gpu.memory_used_bytes, gpu.power_watts,
            gpu.energy_joules, pods,
        )  # fmt: skip
        with self._lock:
            self._moments.append(moment)
            del self._moments[:-MOMENTS_MAX]


def span_of(moments: Sequence[Moment]) -> Span:
    """Means over the readings; energy is what the counter rose by, and None without one."""
    if not moments:
        return Span(0.0, 0.0, None, None, 0, {})
    watts = [moment.watts for moment in moments if moment.watts is not None]
    first, last = moments[0], moments[-1]
    counted = first.joules is not None and last.joules is not None
    peaks: dict[str | None, int] = {}
    for moment in moments:
        for pod, amount in moment.pods.items():
            peaks[pod] = max(amount, peaks.get(pod, 0))
    return Span(
        seconds=last.at - first.at,
        utilization_percent=statistics.fmean(one.utilization_percent for one in moments),
        watts=statistics.fmean(watts) if watts else None,
        joules=(last.joules or 0.0) - (first.joules or 0.0) if counted else None,
        memory_peak_bytes=max(moment.memory_bytes for moment in moments),
        pod_peak_bytes=peaks,
    )
