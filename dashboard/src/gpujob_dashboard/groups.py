"""The jobs by group and namespace, kept in order while jobs change.

A page is rendered every second for its viewers, and changes of jobs are few. A change therefore
updates the lists of one namespace, and a page reads only the jobs that it shows.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import merge
from itertools import islice
from typing import Any, overload

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.model.conditions import (
    SCHEDULED,
    UNPROTECTED,
    UNTUNED,
    HasConditions,
    find,
)
from gpujob_operator.decide.model.pending_reasons import BLOCKING_REASONS
from kubectl_gpujob.verbs.why import priority_and_age

# Each job is in one of these groups.
RUNNING, WAITING, SUSPENDED, FAILED, SUCCEEDED = (
    "running", "waiting", "suspended", "failed", "succeeded"
)  # fmt: skip
STATES = (RUNNING, WAITING, SUSPENDED, FAILED, SUCCEEDED)
# Some running and waiting jobs are also in these. The first two may need a person.
RUNNING_AT_RISK, WAITING_IN_DOUBT, OLDEST_WAITING = "at risk", "in doubt", "oldest"
_LAST = datetime.max.replace(tzinfo=UTC)

# Namespace and name.
Key = tuple[str, str]
# A job's place in a list: the order of the list, then the key, which makes it unique.
Entry = tuple[tuple[Any, ...], Key]


@dataclass(frozen=True, slots=True)
class Members(Sequence[GPUJob]):
    """The jobs of a group in some namespaces, in order. Only those that are read are looked up."""

    _lists: Sequence[Sequence[Entry]]
    _jobs: Mapping[Key, GPUJob]

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    def __iter__(self) -> Iterator[GPUJob]:
        return (self._jobs[key] for _, key in merge(*self._lists))

    @overload
    def __getitem__(self, index: int) -> GPUJob: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GPUJob]: ...
    def __getitem__(self, index: int | slice) -> GPUJob | Sequence[GPUJob]:
        if isinstance(index, int) or index.step is not None:
            return list(self)[index]
        start, stop, _ = index.indices(len(self))
        return list(islice(self, start, stop))

    def ended_after(self, moment: datetime) -> int:
        """Returns how many jobs of a group of ended jobs ended after this time."""
        first = ((-moment.timestamp(),),)
        return sum(bisect_left(entries, first) for entries in self._lists)


@dataclass(slots=True)
class Groups:
    """The groups of all jobs."""

    # By namespace, then by group.
    _lists: dict[str, dict[str, list[Entry]]] = field(
        default_factory=dict[str, dict[str, list[Entry]]]
    )
    _jobs: dict[Key, GPUJob] = field(default_factory=dict[Key, GPUJob])
    # The UUIDs of the GPUs that jobs hold, with the number of jobs on each.
    held: Counter[str] = field(default_factory=Counter[str])

    @property
    def namespaces(self) -> Iterable[str]:
        """The namespaces that have jobs."""
        return self._lists.keys()

    def seen(self, namespaces: frozenset[str] | None) -> Mapping[str, Members]:
        """Returns each group with the jobs of these namespaces alone; None means all.

        The lists follow later changes, so a page must read them before it waits for anything.
        """
        chosen = self._lists.keys() if namespaces is None else self._lists.keys() & namespaces
        of = [self._lists[namespace] for namespace in chosen]
        return {
            name: Members([lists[name] for lists in of if name in lists], self._jobs)
            for name in (*STATES, RUNNING_AT_RISK, WAITING_IN_DOUBT, OLDEST_WAITING)
        }

    def change(self, before: GPUJob | None, after: GPUJob | None) -> None:
        """Replaces a job; None stands for a job that does not exist."""
        old = entries_of(before) if before is not None else {}
        new = entries_of(after) if after is not None else {}
        for name, entry in old.items():
            if new.get(name) != entry:
                self._remove(name, entry)
        for name, entry in new.items():
            if old.get(name) != entry:
                lists = self._lists.setdefault(entry[1][0], {})
                insort(lists.setdefault(name, []), entry)
        if before is not None:
            del self._jobs[_key(before)]
            for uuid in _gpus_of(before):
                self.held[uuid] -= 1
                if not self.held[uuid]:
                    del self.held[uuid]
        if after is not None:
            self._jobs[_key(after)] = after
            self.held.update(_gpus_of(after))

    def _remove(self, name: str, entry: Entry) -> None:
        lists = self._lists[entry[1][0]]
        entries = lists[name]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del lists[name]
        if not lists:
            del self._lists[entry[1][0]]


def groups_of(jobs: Iterable[GPUJob]) -> Groups:
    found = Groups()
    for job in jobs:
        found.change(None, job)
    return found


def entries_of(job: GPUJob) -> Mapping[str, Entry]:
    """Returns the groups of a job, with its place in each."""
    key, state = _key(job), state_of_job(job)
    match state:
        case "failed" | "succeeded":
            # The newest end first. An unknown one is the oldest.
            ended = job.status.finished_at
            return {state: ((-ended.timestamp() if ended is not None else 0.0,), key)}
        case "running":
            by_name: Entry = ((), key)
            return {state: by_name, **({RUNNING_AT_RISK: by_name} if is_at_risk(job) else {})}
        case "waiting":
            in_order: Entry = (priority_and_age(job), key)
            in_doubt = blocking_reason(job) or is_unanswered(job)
            return {
                state: in_order,
                OLDEST_WAITING: ((job.metadata.creation_timestamp or _LAST,), key),
                **({WAITING_IN_DOUBT: in_order} if in_doubt else {}),
            }
        case _:
            return {state: ((), key)}


def state_of_job(job: GPUJob) -> str:
    """Returns which of `STATES` a job is in."""
    phase = job.status.phase
    if phase is JobPhase.FAILED:
        return FAILED
    if phase is JobPhase.SUCCEEDED:
        return SUCCEEDED
    if job.status.placement is not None:
        return RUNNING
    return SUSPENDED if job.spec.suspend else WAITING


def is_at_risk(job: GPUJob) -> bool:
    """Returns whether a running job lost its tuning, or would lose its steps on a spot node."""
    return is_unprotected_on_spot(job) or is_true(job.status, UNTUNED)


def is_unprotected_on_spot(job: GPUJob) -> bool:
    placement = job.status.placement
    return placement is not None and placement.spot and is_true(job.status, UNPROTECTED)


def is_unanswered(job: GPUJob) -> bool:
    """Returns whether the operator has not answered the latest change of the job."""
    return job.status.observed_generation < job.metadata.generation


def blocking_reason(job: GPUJob) -> str:
    """Returns the reason of a job that would wait for ever, or ""."""
    scheduled = find(job.status, SCHEDULED)
    reason = scheduled.reason if scheduled is not None else ""
    return reason if reason in BLOCKING_REASONS else ""


def is_true(status: HasConditions, kind: str) -> bool:
    found = find(status, kind)
    return found is not None and found.status is ConditionStatus.TRUE


def _key(job: GPUJob) -> Key:
    return job.metadata.namespace, job.metadata.name


def _gpus_of(job: GPUJob) -> list[str]:
    placement = None if job.finished else job.status.placement
    workers = placement.workers if placement is not None else ()
    return [uuid for worker in workers for uuid in worker.gpus]
