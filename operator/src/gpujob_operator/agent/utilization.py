"""How busy a GPU was since the last published reading, as the mean of samples.

NVML's figures cover a fraction of a second. On an H200 (driver 580) a job that computed for 15 % of
each second was read as 0 % or as 100 % busy, for as long as its steps kept pace with the readings.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

# The mean time between two samples. The times vary, so that no job keeps pace with them.
SAMPLE_SECONDS = 0.25
SAMPLE_SECONDS_LEAST, SAMPLE_SECONDS_MOST = 0.5 * SAMPLE_SECONDS, 1.5 * SAMPLE_SECONDS
SAMPLES_MAX = 256


@dataclass(frozen=True, slots=True)
class Busy:
    """The utilization of a GPU in percent, and of its processes by PID.

    A process that is missing computed nothing. None: the driver does not report it.
    """

    percent: float
    processes: Mapping[int, float | None] | None


class UtilizationSamples:
    """The samples since the last published reading, by GPU. Bounded by `SAMPLES_MAX` for each."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Busy]] = {}

    def add(self, uuid: str, sample: Busy) -> None:
        self._samples.setdefault(uuid, deque(maxlen=SAMPLES_MAX)).append(sample)

    def mean(self, uuid: str) -> Busy:
        """Returns the mean of the GPU's samples, of which there is at least one."""
        return mean(self._samples[uuid])

    def clear(self) -> None:
        self._samples.clear()


def mean(samples: Sequence[Busy]) -> Busy:
    """Returns the mean utilization, divided among the processes as in their own samples."""
    if len(samples) == 1:
        return samples[0]
    percent = fmean(sample.percent for sample in samples)
    known = [sample.processes for sample in samples if sample.processes is not None]
    seen = dict.fromkeys(pid for processes in known for pid in processes)
    sums = {pid: sum(processes.get(pid) or 0.0 for processes in known) for pid in seen}
    total = sum(sums.values())
    if not known or (total == 0 and percent > 0):
        return Busy(percent, None)
    unsound = {pid for pid in seen if all(one.get(pid) is None for one in known)}
    shares = {pid: percent * (amount / total) if total else 0.0 for pid, amount in sums.items()}
    return Busy(percent, {pid: None if pid in unsound else shares[pid] for pid in seen})
