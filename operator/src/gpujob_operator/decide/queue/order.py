"""The order in which pending jobs get GPUs: priority, overdue waiting, remaining work, arrival.

Between queues, `heads` compares shares before the remaining work. The sort keys are pure functions
of a few numbers of each job. They include running jobs, because a job late in the order may lose
its GPUs to an earlier one. The scheduling cycle and the benchmarks use the same function.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from gpujob_operator.decide.model.configuration import OrderPolicy

# Unknown remaining work is estimated in doubling steps from this many GPU-seconds.
_GUESS_GPU_SECONDS = 14_400.0


@dataclass(frozen=True, slots=True)
class OrderRules:
    """The rules of the order.

    A job is overdue once it has been in the system for the longer of `waiting_seconds_max` and
    `stretch_max` times its own estimated length without waiting. Infinity means never.
    """

    policy: OrderPolicy = OrderPolicy.ARRIVAL
    waiting_seconds_max: float = 86_400.0
    stretch_max: float = 15.0


@dataclass(frozen=True, slots=True)
class OrderEntry:
    """The inputs of the order. Times are in seconds. `gpus` counts the GPUs of all workers
    together.

    `remaining_seconds` is the remaining steps times the measured step time, or None if the job does
    not report its number of steps. `attained_seconds` is how long the job has had GPUs.
    `restart_seconds` is the cost of starting it, counted for jobs that do not run.
    """

    uid: str
    arrived_seconds: float
    gpus: int = 1
    priority: int = 0
    running: bool = False
    remaining_seconds: float | None = None
    attained_seconds: float = 0.0
    restart_seconds: float = 0.0


class OrderKey(NamedTuple):
    """Smaller is earlier. The UID is last, so that no two jobs tie."""

    # Negated.
    priority: int
    on_time: bool
    # When the job became overdue. 0 while it is on time.
    due_seconds: float
    work_gpu_seconds: float
    arrived_seconds: float
    uid: str


def order_key(entry: OrderEntry, now_seconds: float, rules: OrderRules) -> OrderKey:
    """Returns the sort key. Smaller is earlier.

    Jobs are compared by higher priority, then overdue jobs first with the longest overdue one in
    front, then, by policy, less remaining work, then arrival, then UID. Waiting is bounded within a
    priority. A job that arrives after another one is overdue has a later due time, so only jobs
    that arrived earlier can still go first.
    """
    return order_keys(entry, rules).key(now_seconds)


def due_seconds(entry: OrderEntry, rules: OrderRules) -> float:
    """Returns when the job becomes overdue, on the clock of `arrived_seconds`."""
    length = entry.attained_seconds + (entry.remaining_seconds or 0.0)
    return entry.arrived_seconds + max(rules.waiting_seconds_max, rules.stretch_max * length)


def length_relevant_from_seconds(rules: OrderRules) -> float:
    """Returns the estimated length below which the length changes no key."""
    if rules.policy is OrderPolicy.SHORTEST:
        return 0.0
    return rules.waiting_seconds_max / rules.stretch_max if rules.stretch_max > 0 else math.inf


@dataclass(frozen=True, slots=True)
class OrderKeys:
    """The keys of an entry while it is on time and once it is overdue.

    Time changes nothing else.
    """

    due_seconds: float
    on_time: OrderKey

    def key(self, now_seconds: float) -> OrderKey:
        due_seconds = self.due_seconds
        if now_seconds < due_seconds:
            return self.on_time
        priority, *_, arrived, uid = self.on_time
        return OrderKey(priority, False, due_seconds, 0.0, arrived, uid)


def order_keys(entry: OrderEntry, rules: OrderRules) -> OrderKeys:
    priority, arrived, uid = -entry.priority, entry.arrived_seconds, entry.uid
    due = due_seconds(entry, rules)
    work = work_gpu_seconds(entry) if rules.policy is OrderPolicy.SHORTEST else 0.0
    return OrderKeys(due, OrderKey(priority, True, 0.0, work, arrived, uid))


def work_gpu_seconds(entry: OrderEntry) -> float:
    """Returns the GPU-seconds still to be spent on the job.

    A job that reports no number of steps is expected to need as much again as it has had, because
    lengths of training jobs are heavy-tailed. The estimate grows in doubling steps, so that equal
    jobs do not alternate.
    """
    start = 0.0 if entry.running else entry.restart_seconds
    if entry.remaining_seconds is not None:
        return (max(entry.remaining_seconds, 0.0) + start) * entry.gpus
    attained = entry.attained_seconds * entry.gpus
    doublings = math.floor(math.log2(max(attained / _GUESS_GPU_SECONDS, 1.0)))
    return _GUESS_GPU_SECONDS * 2.0**doublings
