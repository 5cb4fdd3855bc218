"""A pending job with its key in the order, how long it has waited, and what it was told last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.measurement.runtime import remaining_seconds
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.queue.order import (
    OrderEntry,
    OrderKey,
    OrderKeys,
    OrderRules,
    order_keys,
)


@dataclass(frozen=True, slots=True)
class LastReason:
    """The last reason written to a pending job. It is not written again before `until`."""

    reason: str
    until: datetime
    # From when on the job may keep GPUs from later ones.
    starved_at: datetime


@dataclass(frozen=True, slots=True)
class Pending:
    """A job without GPUs. Its pods, if any, are remains of an earlier attempt."""

    job: GPUJob
    pods: tuple[PodView, ...] = ()
    # Jobs of one class fit, or do not, together and have the same rights; 0: nobody knows.
    equivalence_class: int = 0
    last_reason: LastReason | None = None
    # None: nobody knows when it arrived, and it counts as having arrived now.
    order_keys: OrderKeys | None = None


# With its key of this moment, which ends with the UID, so that none tie.
Keyed = tuple[OrderKey, Pending]
KEY_OF = itemgetter(0)
# Of each queue, who is next comes first.
OrderedQueues = Mapping[str, Sequence[Keyed]]


def last_reason_of(
    job: GPUJob, pods: tuple[PodView, ...], configuration: Configuration
) -> LastReason | None:
    """None where the job was told nothing yet, or may wait for something of its own."""
    status, since = job.status, _since(job)
    finding = conditions.find(status, conditions.SCHEDULED)
    told = status.observed_at
    if finding is None or told is None or since is None:
        return None
    if job.spec.suspend or status.observed_generation != job.metadata.generation:
        return None
    if any(not pod.finished for pod in pods):
        return None
    if status.next_attempt_at is not None and status.next_attempt_at > told:
        return None
    return LastReason(
        finding.reason,
        told + timedelta(seconds=configuration.pending_write_seconds),
        since + timedelta(seconds=configuration.claim_after_seconds),
    )


def waited_seconds(job: GPUJob, now: datetime) -> float:
    return (now - (_since(job) or now)).total_seconds()


def _since(job: GPUJob) -> datetime | None:
    status = job.status
    return status.next_attempt_at or status.requeued_at or job.metadata.creation_timestamp


def written_recently(job: GPUJob, configuration: Configuration, now: datetime) -> bool:
    told = job.status.observed_at
    if told is None or job.status.observed_generation != job.metadata.generation:
        return False
    return (now - told).total_seconds() < configuration.pending_write_seconds


def order_rules(configuration: Configuration) -> OrderRules:
    return OrderRules(
        policy=configuration.order_policy,
        waiting_seconds_max=configuration.waiting_seconds_max,
        stretch_max=configuration.waiting_stretch_max,
    )


def order_entry(job: GPUJob, now: datetime) -> OrderEntry:
    """The job as `order` sees it, without its queue's share. Times are seconds since 1970."""
    return _order_entry(job, _arrival(job) or now)


def order_keys_of(job: GPUJob, rules: OrderRules) -> OrderKeys | None:
    """The job's keys; None while nobody knows when it arrived."""
    arrived = _arrival(job)
    return order_keys(_order_entry(job, arrived), rules) if arrived is not None else None


def _arrival(job: GPUJob) -> datetime | None:
    return job.status.requeued_at or job.metadata.creation_timestamp


def _order_entry(job: GPUJob, arrived: datetime) -> OrderEntry:
    measured = job.status.measurement
    pace = measured.current.step_seconds if measured is not None and measured.current else 0.0
    steps = (measured.step, measured.steps_total) if measured is not None else (0, None)
    return OrderEntry(
        uid=job.metadata.uid,
        arrived_seconds=arrived.timestamp(),
        gpus=job.spec.workers * job.spec.gpus_per_worker,
        priority=job.spec.priority,
        remaining_seconds=remaining_seconds(*steps, pace),
    )
