"""The first page: the use of the GPUs, what needs a person, and the jobs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import STATUS_SECONDS_MAX, GPUNode
from gpujob_api.quantities import format_memory
from gpujob_dashboard.pages.contents import Page, Query, Section, cut, link, text_of
from gpujob_dashboard.pages.job_facts import is_true, job_link, percent
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State
from gpujob_operator.decide.model.conditions import SCHEDULED, UNPROTECTED, UNTUNED, find
from gpujob_operator.decide.model.next_steps import next_step
from gpujob_operator.decide.model.pending_reasons import PendingReason
from kubectl_gpujob.fleet import HeldGPU, held_gpus
from kubectl_gpujob.starts import start_text
from kubectl_gpujob.verbs.list import cells
from kubectl_gpujob.verbs.why import by_queue_order

# Readings are written at least this often by a live agent, with a minute to spare.
STALE = timedelta(seconds=STATUS_SECONDS_MAX + 60)
RECENT = timedelta(hours=24)
ATTENTION_MAX = 20
# Reasons that neither time nor other jobs end.
_BLOCKING = frozenset(
    {
        PendingReason.QUEUE_NOT_FOUND,
        PendingReason.INADMISSIBLE,
        PendingReason.SPEC_REJECTED,
        PendingReason.POD_REJECTED,
        PendingReason.CLAIM_NOT_FOUND,
        PendingReason.UNSATISFIABLE,
    }
)
_LAST = datetime.max.replace(tzinfo=UTC)


# Jobs by the name of their group.
Grouped = Mapping[str, Sequence[GPUJob]]


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that are shown together, under this name in the address."""

    name: str
    title: str
    order: Callable[[Sequence[GPUJob]], Sequence[GPUJob]]


def _by_name(jobs: Sequence[GPUJob]) -> Sequence[GPUJob]:
    return sorted(jobs, key=attrgetter("metadata.namespace", "metadata.name"))


def _newest_end_first(jobs: Sequence[GPUJob]) -> Sequence[GPUJob]:
    return sorted(jobs, key=lambda job: job.status.finished_at or _LAST, reverse=True)


GROUPS = (
    Group("running", "Running", _by_name),
    Group("waiting", "Waiting", by_queue_order),
    Group("suspended", "Suspended", _by_name),
    Group("failed", "Failed", _newest_end_first),
    Group("succeeded", "Succeeded", _newest_end_first),
)


def grouped(jobs: Iterable[GPUJob]) -> Grouped:
    """Returns the jobs of each group. There may be many, so each is looked at once."""
    found: dict[str, list[GPUJob]] = {group.name: [] for group in GROUPS}
    for job in jobs:
        found[_group_of(job)].append(job)
    return found


def _group_of(job: GPUJob) -> str:
    phase = job.status.phase
    if phase is JobPhase.FAILED:
        return "failed"
    if phase is JobPhase.SUCCEEDED:
        return "succeeded"
    if job.status.placement is not None:
        return "running"
    return "suspended" if job.spec.suspend else "waiting"


def now_page(state: State, rights: Rights, query: Query) -> Page:
    everyone = grouped(state.jobs)
    jobs = everyone
    if not rights.all_jobs:
        jobs = {name: [one for one in of if rights.may_see(one)] for name, of in everyone.items()}
    gpus = held_gpus(state.nodes, everyone["running"]) if rights.nodes else []
    return Page(
        "Now",
        {
            "figures": Section("now/figures.html", _figures(jobs, gpus, state.now)),
            "attention": Section("now/attention.html", {"items": attention(jobs, state, rights)}),
            "jobs": Section("now/jobs.html", _jobs(jobs, query, state.now)),
        },
        "/",
    )


def _figures(jobs: Grouped, gpus: Sequence[HeldGPU], now: datetime) -> Mapping[str, Any]:
    waiting = jobs["waiting"]
    created = [job.metadata.creation_timestamp or now for job in waiting]
    longest = waiting[created.index(min(created))] if waiting else None
    total = sum(held.gpu.memory_total_bytes for held in gpus)
    used = sum(held.gpu.memory_used_bytes for held in gpus)
    return {
        "gpus": len(gpus),
        "in_use": sum(bool(held.jobs) for held in gpus),
        "utilization": _mean([held.gpu.utilization_percent for held in gpus]),
        "memory_used": format_memory(used),
        "memory_total": format_memory(total),
        "memory_percent": 100 * used / total if total else 0.0,
        "running": len(jobs["running"]),
        "waiting": len(waiting),
        "longest": longest,
        "longest_reason": cells(longest, now)["STATUS"] if longest is not None else "",
        "failed": sum(_failed_lately(job, now) for job in jobs["failed"]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _failed_lately(job: GPUJob, now: datetime) -> bool:
    ended = job.status.finished_at
    return job.status.phase is JobPhase.FAILED and ended is not None and now - ended < RECENT


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that needs a person: where, what, and the next step."""

    name: str
    link: str
    text: str
    next: str = ""


def attention(jobs: Grouped, state: State, rights: Rights) -> Sequence[Concern]:
    """Returns the concerns, those about GPUs first, at most `ATTENTION_MAX`."""
    found: list[Concern] = []
    if rights.nodes:
        for node in state.nodes:
            found += _of_node(node, state.now)
    for name, concern_of in _CONCERNS:
        for job in jobs[name]:
            if len(found) >= ATTENTION_MAX:
                return found[:ATTENTION_MAX]
            if (concern := concern_of(job, state.now)) is not None:
                found.append(concern)
    return found[:ATTENTION_MAX]


def _of_node(node: GPUNode, now: datetime) -> Iterable[Concern]:
    name, read = node.metadata.name, node.status.observed_at
    where = f"/gpus/{name}"
    if read is None or now - read > STALE:
        since = f"since {read:%Y-%m-%d %H:%M} UTC" if read is not None else "yet"
        yield Concern(
            name, where, f"no readings {since}; jobs there are placed by older ones",
            f"kubectl get pods -A -o wide -l app.kubernetes.io/component=agent | grep {name}",
        )  # fmt: skip
    for gpu in node.status.gpus:
        if not gpu.healthy:
            text = f"GPU {gpu.index} is unhealthy: {gpu.health_message or 'no reason given'}"
            yield Concern(name, where, text, f"kubectl gpujob nodes {name}")


def _of_failed(job: GPUJob, now: datetime) -> Concern | None:
    if not _failed_lately(job, now):
        return None
    failure = job.status.failure
    return _concern(job, f"failed: {failure.message if failure is not None else 'failed'}")


def _of_running(job: GPUJob, now: datetime) -> Concern | None:
    del now
    placement = job.status.placement
    if placement is not None and placement.spot and is_true(job.status, UNPROTECTED):
        return _concern(
            job, "runs on a spot node and starts from the beginning after an interruption"
        )
    return _concern(job, "runs without tuning") if is_true(job.status, UNTUNED) else None


def _of_waiting(job: GPUJob, now: datetime) -> Concern | None:
    if reason := _blocking(job):
        return _concern(job, f"waits: {job.status.summary.reason or reason}")
    created = job.metadata.creation_timestamp or now
    behind = job.status.observed_generation < job.metadata.generation
    if behind and now - created > timedelta(minutes=1):
        text = "the operator has not answered"
        return Concern(job.metadata.key, job_link(job), text, "kubectl gpujob doctor")
    return None


def _concern(job: GPUJob, text: str) -> Concern:
    return Concern(job.metadata.key, job_link(job), text, next_step(job))


_CONCERNS = (("failed", _of_failed), ("running", _of_running), ("waiting", _of_waiting))


def _blocking(job: GPUJob) -> str:
    """Returns the reason of a job that would wait for ever, or ""."""
    scheduled = find(job.status, SCHEDULED)
    reason = scheduled.reason if scheduled is not None else ""
    return reason if reason in _BLOCKING else ""


def _jobs(jobs: Grouped, query: Query, now: datetime) -> Mapping[str, Any]:
    found = {name: _filtered(of, query) for name, of in jobs.items()}
    asked = text_of(query, "status")
    first = next((group for group in GROUPS if group.name == asked), None) or GROUPS[0]
    kept = {name: text_of(query, name) for name in ("namespace", "queue", "name")}
    rows = cut(first.order(found[first.name]), {**kept, **_paging(query, first)}, "/")
    return {
        "groups": [
            (
                group.title,
                len(found[group.name]),
                link("/", kept, status=group.name),
                group is first,
            )
            for group in GROUPS
        ],
        "chosen": first.name,
        "filters": kept,
        "cut": rows,
        "rows": [_row(job, now) for job in rows.rows],
        "of": sum(map(len, jobs.values())),
    }


def _paging(query: Query, group: Group) -> Mapping[str, str]:
    return {"status": group.name, "page": query.get("page", "")}


def _filtered(jobs: Sequence[GPUJob], query: Query) -> Sequence[GPUJob]:
    namespace, queue = text_of(query, "namespace"), text_of(query, "queue")
    part = text_of(query, "name").lower()
    if not (namespace or queue or part):
        return jobs
    return [
        job
        for job in jobs
        if (not namespace or job.metadata.namespace == namespace)
        and (not queue or job.spec.queue == queue)
        and part in job.metadata.name
    ]


def _row(job: GPUJob, now: datetime) -> Mapping[str, Any]:
    """Returns the cells of the table, which are those of `kubectl gpujob list`."""
    return {
        "link": job_link(job),
        "created": job.metadata.creation_timestamp,
        "percent": percent(job),
        "priority": job.spec.priority,
        "count": job.spec.gpus,
        "start": start_text(job, (), now),
        "next": next_step(job),
        "message": _message(job),
        **{name.lower(): cell for name, cell in cells(job, now).items()},
    }


def _message(job: GPUJob) -> str:
    failure = job.status.failure
    if job.status.phase is JobPhase.FAILED and failure is not None:
        return failure.message
    return job.status.summary.reason
