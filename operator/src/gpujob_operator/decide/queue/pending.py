"""A pending job with its key in the order, its waiting time, and the last reason written to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.measurement.runtime import remaining_of
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.model.waiting_time import arrival, waits_since
from gpujob_operator.decide.queue.order import (
    OrderEntry,
    OrderKey,
    OrderKeys,
    OrderRules,
    order_keys,
)

# Later than any arrival.
_LAST = datetime(8000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LastReason:
    """The last reason written to a pending job. It is not written again before `until`."""

    reason: str
    until: datetime
    # From this time on, GPUs may be nominated for the job.
    starved_at: datetime


@dataclass(frozen=True, slots=True)
class Pending:
    """A job without a placement. Its pods, if any, are left over from an earlier attempt."""

    job: GPUJob
    pods: tuple[PodView, ...] = ()
    # Jobs of one equivalence class fit or do not fit together, and have the same rights. 0:
    # unknown.
    equivalence_class: int = 0
    last_reason: LastReason | None = None
    # None if the arrival is unknown, which counts as now.
    order_keys: OrderKeys | None = None


class Keyed(NamedTuple):
    """A pending job with its key at this time."""

    key: OrderKey
    pending: Pending


# The head of each queue comes first.
OrderedQueues = Mapping[str, Sequence[Keyed]]


def last_reason_of(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration
) -> LastReason | None:
    """Returns the last reason, or None.

    None means that no reason was written yet, or that the job may wait for something of its own.
    """
    status, since = job.status, waits_since(job)
    finding = conditions.find(status, conditions.SCHEDULED)
    written_at = status.observed_at
    if finding is None or written_at is None or since is None:
        return None
    if status.held_back_since is not None:
        return None
    if job.spec.suspend or status.observed_generation != job.metadata.generation:
        return None
    if any(not pod.finished for pod in pods):
        return None
    if status.next_attempt_at is not None and status.next_attempt_at > written_at:
        return None
    return LastReason(
        finding.reason,
        written_at + timedelta(seconds=configuration.pending_write_seconds),
        since + timedelta(seconds=configuration.nominate_after_seconds),
    )


def written_recently(job: GPUJob, configuration: Configuration, now: datetime) -> bool:
    written_at = job.status.observed_at
    if written_at is None or job.status.observed_generation != job.metadata.generation:
        return False
    return (now - written_at).total_seconds() < configuration.pending_write_seconds


def order_rules(configuration: Configuration) -> OrderRules:
    return OrderRules(
        policy=configuration.order_policy,
        waiting_seconds_max=configuration.waiting_seconds_max,
        stretch_max=configuration.waiting_stretch_max,
    )


def order_entry(
    job: GPUJob,
    arrived: datetime,
    configuration: Configuration,
    expected_run_seconds: float | None = None,
) -> OrderEntry:
    """Returns the job's inputs of `order`, without its queue's share. Times are Unix times in
    seconds.

    `expected_run_seconds` is how long a job that has not run yet will take, if that is known.
    """
    attained_seconds = job.status.held_seconds or 0.0
    left = remaining_of(job, configuration)
    if left is None and not attained_seconds:
        left = expected_run_seconds
    return OrderEntry(
        uid=job.metadata.uid,
        arrived_seconds=arrived.timestamp(),
        gpus=job.spec.gpus,
        priority=job.spec.priority,
        remaining_seconds=left,
        attained_seconds=attained_seconds,
        restart_seconds=configuration.restart_seconds,
    )


def order_keys_of(
    job: GPUJob,
    configuration: Configuration,
    rules: OrderRules,
    expected_run_seconds: float | None,
) -> OrderKeys | None:
    """Returns the job's keys by the configuration's rules, or None while its arrival is unknown.

    A job that could not start comes last of its priority in the cycle in which it can start again.
    From the next cycle on its status has its waiting time.
    """
    held_back = job.status.held_back_since is not None
    arrived = _LAST if held_back else arrival(job)
    if arrived is None:
        return None
    entry = order_entry(job, arrived, configuration, expected_run_seconds)
    return order_keys(entry, rules)
