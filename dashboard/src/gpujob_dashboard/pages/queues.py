"""The queues, and the jobs that wait in one."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import DEFAULT_QUEUE
from gpujob_api.quantities import format_memory
from gpujob_dashboard.pages.contents import NoSuchPage, Page, Query, Section, cut
from gpujob_dashboard.pages.job_facts import job_link
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State
from gpujob_operator.decide.model.conditions import SCHEDULED, find
from gpujob_operator.decide.model.next_steps import next_step
from kubectl_gpujob.starts import start_text
from kubectl_gpujob.verbs.list import cells, planned_position
from kubectl_gpujob.verbs.queue import queue_rows
from kubectl_gpujob.verbs.why import in_queue_order

_PLACE = "/queues"


def queues_page(state: State, rights: Rights, query: Query) -> Page:
    if not rights.queues:
        return Page("Queues", {"queues": Section("refused.html", {"kind": "gpuqueues"})}, _PLACE)
    rows = [
        {**{name.lower(): cell for name, cell in row.items()}, "link": f"/queues/{row['QUEUE']}"}
        for row in queue_rows(state.queues, state.jobs)
    ]
    shown = cut(rows, query, _PLACE)
    values = {"rows": shown.rows, "cut": shown}
    return Page("Queues", {"queues": Section("queues/list.html", values)}, _PLACE)


def queue_page(state: State, rights: Rights, name: str, query: Query) -> Page:
    known = {DEFAULT_QUEUE, *(queue.metadata.name for queue in state.queues)}
    if name not in known or not rights.queues:
        raise NoSuchPage(f"there is no queue {name} that you may see")
    waiting = sorted(in_queue_order(state.jobs, name), key=_planned_first)
    places = list(enumerate(waiting, 1))
    path = f"/queues/{name}"
    shown = cut(places, query, path)
    values = {
        "name": name,
        "cut": shown,
        "rows": [_row(place, job, rights, state) for place, job in shown.rows],
        "reasons": _reasons(waiting),
        "spec": next((one.spec for one in state.queues if one.metadata.name == name), None),
    }
    return Page(f"Queue {name}", {"queue": Section("queues/queue.html", values)}, _PLACE)


def _planned_first(job: GPUJob) -> tuple[bool, int]:
    """Orders by the planner's position. Jobs without one come last, in the order of the queue."""
    position = planned_position(job)
    return position is None, position or 0


def _row(place: int, job: GPUJob, rights: Rights, state: State) -> Mapping[str, Any]:
    """Returns the cells of a job. Of a job of another namespace, only its size and place."""
    held = job.spec.gpu.memory
    row: dict[str, Any] = {
        "place": place,
        "position": planned_position(job),
        "priority": job.spec.priority,
        "gpus": job.spec.gpus,
        "memory": format_memory(held.bytes) if held is not None else "measured",
        "created": job.metadata.creation_timestamp,
        "name": "",
    }
    if rights.may_see(job):
        row |= {
            "name": job.metadata.key,
            "link": job_link(job),
            "status": cells(job, state.now)["STATUS"],
            "start": start_text(job, (), state.now),
            "reason": job.status.summary.reason,
            "next": next_step(job),
        }
    return row


def _reasons(waiting: Sequence[GPUJob]) -> Sequence[tuple[str, int]]:
    """Returns how many jobs wait for each reason, the most frequent first."""
    counts: dict[str, int] = {}
    for job in waiting:
        scheduled = find(job.status, SCHEDULED)
        reason = scheduled.reason if scheduled is not None else "not answered yet"
        counts[reason] = counts.get(reason, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
