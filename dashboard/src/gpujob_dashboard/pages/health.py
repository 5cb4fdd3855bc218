"""How current the page itself, the agents and the operator are."""

from datetime import timedelta

from gpujob_api.gpujob import GPUJob
from gpujob_dashboard.pages.contents import Page, Query, Section, cut
from gpujob_dashboard.pages.now import STALE
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State

# A live operator answers a change of a job within this time.
ANSWER = timedelta(minutes=1)


def health_page(state: State, rights: Rights, query: Query) -> Page:
    sections = {
        "sources": Section("health/sources.html", {"sources": state.sources}),
        "operator": Section("health/operator.html", _operator(state, rights)),
    }
    if rights.nodes:
        sections["agents"] = Section("health/agents.html", _agents(state, query))
    return Page("Health", sections, "/health")


def _operator(state: State, rights: Rights) -> dict[str, object]:
    jobs = [job for job in state.jobs if rights.may_see(job)]
    late = [job for job in jobs if _is_unanswered(job, state)]
    return {"jobs": len(jobs), "late": late[:10], "late_count": len(late)}


def _is_unanswered(job: GPUJob, state: State) -> bool:
    created = job.metadata.creation_timestamp
    behind = job.status.observed_generation < job.metadata.generation
    return behind and not job.finished and created is not None and state.now - created > ANSWER


def _agents(state: State, query: Query) -> dict[str, object]:
    """Returns the nodes, those with the oldest readings first."""
    nodes = sorted(
        state.nodes,
        key=lambda node: (
            node.status.observed_at.timestamp() if node.status.observed_at is not None else 0.0
        ),
    )
    shown = cut(nodes, query, "/health")
    rows = [
        {
            "name": node.metadata.name,
            "read": node.status.observed_at,
            "stale": node.status.observed_at is None or state.now - node.status.observed_at > STALE,
            "agent": node.status.agent_version,
            "driver": node.status.driver_version,
            "gpus": node.status.summary.gpus,
        }
        for node in shown.rows
    ]
    return {"rows": rows, "cut": shown, "stale": sum(row["stale"] is True for row in rows)}
