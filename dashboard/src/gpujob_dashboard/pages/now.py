"""The first page: the use of the GPUs, what needs a person, and the jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import STATUS_SECONDS_MAX, GPUNode
from gpujob_api.quantities import format_memory
from gpujob_dashboard.groups import (
    FAILED,
    OLDEST_WAITING,
    RUNNING,
    RUNNING_AT_RISK,
    SUCCEEDED,
    SUSPENDED,
    WAITING,
    WAITING_IN_DOUBT,
    Members,
    blocking_reason,
    is_unprotected_on_spot,
)
from gpujob_dashboard.pages.contents import Page, Query, Section, cut, link, text_of
from gpujob_dashboard.pages.job_facts import job_link, percent
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State
from gpujob_operator.decide.model.next_steps import next_step
from kubectl_gpujob.starts import start_text
from kubectl_gpujob.verbs.list import cells

# Readings are written at least this often by a live agent, with a minute to spare.
STALE = timedelta(seconds=STATUS_SECONDS_MAX + 60)
RECENT = timedelta(hours=24)
ATTENTION_MAX = 20
# The states by which jobs are shown, in this order.
_TITLES = {
    RUNNING: "Running",
    WAITING: "Waiting",
    SUSPENDED: "Suspended",
    FAILED: "Failed",
    SUCCEEDED: "Succeeded",
}
# Jobs by the name of their group.
Grouped = Mapping[str, Members]


def now_page(state: State, rights: Rights, query: Query) -> Page:
    jobs = state.groups.seen(rights.namespaces)
    return Page(
        "Now",
        {
            "figures": Section("now/figures.html", _figures(jobs, state, rights)),
            "attention": Section("now/attention.html", {"items": attention(jobs, state, rights)}),
            "jobs": Section("now/jobs.html", _jobs(jobs, query, state, rights)),
        },
        "/",
    )


def _figures(jobs: Grouped, state: State, rights: Rights) -> Mapping[str, Any]:
    longest = next(iter(jobs[OLDEST_WAITING]), None)
    gpus = [gpu for node in state.nodes for gpu in node.status.gpus] if rights.nodes else []
    total = sum(gpu.memory_total_bytes for gpu in gpus)
    used = sum(gpu.memory_used_bytes for gpu in gpus)
    return {
        "gpus": len(gpus),
        "in_use": sum(gpu.uuid in state.groups.held for gpu in gpus),
        "utilization": _mean([gpu.utilization_percent for gpu in gpus]),
        "memory_used": format_memory(used),
        "memory_total": format_memory(total),
        "memory_percent": 100 * used / total if total else 0.0,
        "running": len(jobs[RUNNING]),
        "waiting": len(jobs[WAITING]),
        "longest": longest,
        "longest_reason": cells(longest, state.now)["STATUS"] if longest is not None else "",
        "failed": jobs[FAILED].ended_after(state.now - RECENT),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


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
    failed = jobs[FAILED].ended_after(state.now - RECENT)
    for name, number, concern_of in (
        (FAILED, failed, _of_failed),
        (RUNNING_AT_RISK, None, _of_running),
        (WAITING_IN_DOUBT, None, _of_waiting),
    ):
        concerns = (concern_of(job, state.now) for job in islice(jobs[name], number))
        found += islice(filter(None, concerns), max(ATTENTION_MAX - len(found), 0))
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


def _of_failed(job: GPUJob, now: datetime) -> Concern:
    del now
    failure = job.status.failure
    return _concern(job, f"failed: {failure.message if failure is not None else 'failed'}")


def _of_running(job: GPUJob, now: datetime) -> Concern:
    del now
    if is_unprotected_on_spot(job):
        return _concern(
            job, "runs on a spot node and starts from the beginning after an interruption"
        )
    return _concern(job, "runs without tuning")


def _of_waiting(job: GPUJob, now: datetime) -> Concern | None:
    if reason := blocking_reason(job):
        return _concern(job, f"waits: {job.status.summary.reason or reason}")
    created = job.metadata.creation_timestamp or now
    if now - created > timedelta(minutes=1):
        text = "the operator has not answered"
        return Concern(job.metadata.key, job_link(job), text, "kubectl gpujob doctor")
    return None


def _concern(job: GPUJob, text: str) -> Concern:
    return Concern(job.metadata.key, job_link(job), text, next_step(job))


def _jobs(jobs: Grouped, query: Query, state: State, rights: Rights) -> Mapping[str, Any]:
    kept = {name: text_of(query, name) for name in ("namespace", "queue", "name")}
    found = _filtered(jobs, kept, state, rights)
    asked = text_of(query, "status")
    chosen = asked if asked in _TITLES else RUNNING
    paging = {"status": chosen, "page": query.get("page", "")}
    rows = cut(found[chosen], {**kept, **paging}, "/")
    return {
        "groups": [
            (title, len(found[name]), link("/", kept, status=name), name == chosen)
            for name, title in _TITLES.items()
        ],
        "chosen": chosen,
        "filters": kept,
        "cut": rows,
        "rows": [_row(job, state.now) for job in rows.rows],
        "of": sum(len(jobs[name]) for name in _TITLES),
    }


def _filtered(
    jobs: Grouped, kept: Query, state: State, rights: Rights
) -> Mapping[str, Sequence[GPUJob]]:
    """Returns the jobs of the viewer that pass the filter. One of names looks at all of them."""
    namespace, queue, part = kept["namespace"], kept["queue"], kept["name"].lower()
    if namespace:
        jobs = state.groups.seen(rights.within(namespace))
    if not (queue or part):
        return jobs
    return {
        name: [
            job
            for job in jobs[name]
            if (not queue or job.spec.queue == queue) and part in job.metadata.name
        ]
        for name in _TITLES
    }


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
