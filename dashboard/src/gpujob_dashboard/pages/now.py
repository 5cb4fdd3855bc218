"""The first page: the use of the GPUs, what needs a person, and the jobs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import STATUS_SECONDS_MAX, GPUNode
from gpujob_api.quantities import format_memory
from gpujob_dashboard.pages.contents import Page, Query, Section, cut, link, text_of
from gpujob_dashboard.pages.job_facts import holds, is_true, job_link, percent, rests, waits
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State
from gpujob_operator.decide.model.conditions import SCHEDULED, UNPROTECTED, UNTUNED, find
from gpujob_operator.decide.model.next_steps import next_step
from gpujob_operator.decide.model.pending_reasons import PendingReason
from kubectl_gpujob.fleet import HeldGPU, held_gpus
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


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that are shown together, under this name in the address."""

    name: str
    title: str
    has: Callable[[GPUJob], bool]
    order: Callable[[Sequence[GPUJob]], Sequence[GPUJob]]


def _by_name(jobs: Sequence[GPUJob]) -> Sequence[GPUJob]:
    return sorted(jobs, key=lambda job: (job.metadata.namespace, job.metadata.name))


def _newest_end_first(jobs: Sequence[GPUJob]) -> Sequence[GPUJob]:
    return sorted(jobs, key=lambda job: job.status.finished_at or _LAST, reverse=True)


GROUPS = (
    Group("running", "Running", holds, _by_name),
    Group("waiting", "Waiting", waits, by_queue_order),
    Group("suspended", "Suspended", rests, _by_name),
    Group("failed", "Failed", lambda job: job.status.phase is JobPhase.FAILED, _newest_end_first),
    Group(
        "succeeded", "Succeeded", lambda job: job.status.phase is JobPhase.SUCCEEDED,
        _newest_end_first,
    ),
)  # fmt: skip


def now_page(state: State, rights: Rights, query: Query) -> Page:
    jobs = [job for job in state.jobs if rights.may_see(job)]
    gpus = held_gpus(state.nodes, state.jobs) if rights.nodes else []
    return Page(
        "Now",
        {
            "figures": Section("now/figures.html", _figures(jobs, gpus, state.now)),
            "attention": Section("now/attention.html", {"items": attention(jobs, state, rights)}),
            "jobs": Section("now/jobs.html", _jobs(jobs, query, state.now)),
        },
        "/",
    )


def _figures(jobs: Sequence[GPUJob], gpus: Sequence[HeldGPU], now: datetime) -> Mapping[str, Any]:
    waiting = [job for job in jobs if waits(job)]
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
        "running": sum(map(holds, jobs)),
        "waiting": len(waiting),
        "longest": longest,
        "longest_reason": cells(longest, now)["STATUS"] if longest is not None else "",
        "failed": sum(_failed_lately(job, now) for job in jobs),
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


def attention(jobs: Iterable[GPUJob], state: State, rights: Rights) -> Sequence[Concern]:
    """Returns the concerns, those about GPUs first, at most `ATTENTION_MAX`."""
    found: list[Concern] = []
    if rights.nodes:
        for node in state.nodes:
            found += _of_node(node, state.now)
    for job in jobs:
        if len(found) >= ATTENTION_MAX:
            break
        found += _of_job(job, state.now)
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


def _of_job(job: GPUJob, now: datetime) -> Iterable[Concern]:
    key, where = job.metadata.key, job_link(job)
    if _failed_lately(job, now):
        failure = job.status.failure
        text = failure.message if failure is not None else "failed"
        yield Concern(key, where, f"failed: {text}", next_step(job))
    elif holds(job):
        placement = job.status.placement
        on_spot = placement is not None and placement.spot
        if on_spot and is_true(job.status, UNPROTECTED):
            text = "runs on a spot node and starts from the beginning after an interruption"
            yield Concern(key, where, text, next_step(job))
        elif is_true(job.status, UNTUNED):
            yield Concern(key, where, "runs without tuning", next_step(job))
    elif waits(job) and (reason := _blocking(job)):
        yield Concern(key, where, f"waits: {job.status.summary.reason or reason}", next_step(job))
    elif waits(job) and job.status.observed_generation < job.metadata.generation:
        since = job.metadata.creation_timestamp or now
        if now - since > timedelta(minutes=1):
            yield Concern(key, where, "the operator has not answered", "kubectl gpujob doctor")


def _blocking(job: GPUJob) -> str:
    """Returns the reason of a job that would wait for ever, or ""."""
    scheduled = find(job.status, SCHEDULED)
    reason = scheduled.reason if scheduled is not None else ""
    return reason if reason in _BLOCKING else ""


def _jobs(jobs: Sequence[GPUJob], query: Query, now: datetime) -> Mapping[str, Any]:
    chosen = _filtered(jobs, query)
    found = {group.name: [job for job in chosen if group.has(job)] for group in GROUPS}
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
        "of": len(jobs),
    }


def _paging(query: Query, group: Group) -> Mapping[str, str]:
    return {"status": group.name, "page": query.get("page", "")}


def _filtered(jobs: Sequence[GPUJob], query: Query) -> Sequence[GPUJob]:
    namespace, queue = text_of(query, "namespace"), text_of(query, "queue")
    part = text_of(query, "name").lower()
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
        "next": next_step(job),
        "message": _message(job),
        **{name.lower(): cell for name, cell in cells(job, now).items()},
    }


def _message(job: GPUJob) -> str:
    failure = job.status.failure
    if job.status.phase is JobPhase.FAILED and failure is not None:
        return failure.message
    return job.status.summary.reason
