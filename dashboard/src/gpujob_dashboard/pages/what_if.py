"""A change of the cluster, answered by simulation: more nodes, fewer, or another quota."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpujob_dashboard.pages.contents import Page, Query, Section, text_of
from gpujob_operator.decide.simulation.run import Limits
from kubectl_gpujob import question, text
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.observations import Observation
from kubectl_gpujob.verbs import simulate

# Bounds the time of an answer. The command has higher limits.
CYCLES_MAX = 500
HORIZON = "24h"
JOBS_MAX = 50
_FIELDS = ("add", "without", "quota", "horizon")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The change that was entered, each field as on the command line."""

    add: str = ""
    without: str = ""
    quota: str = ""
    horizon: str = HORIZON

    @property
    def command(self) -> str:
        """The command that gives the same answer."""
        parts = ["kubectl gpujob simulate"]
        named = (("--add-nodes", self.add), ("--without-node", self.without))
        for option, words in (*named, ("--quota", self.quota)):
            parts += [f"{option} {word}" for word in words.split()]
        return " ".join([*parts, f"--horizon {self.horizon}"])


def entered(query: Query) -> WhatIf | None:
    """Returns the change, or None if the form was not sent."""
    if not any(name in query for name in _FIELDS):
        return None
    values = {name: text_of(query, name) for name in _FIELDS}
    return WhatIf(**{**values, "horizon": values["horizon"] or HORIZON})


def answer(observation: Observation, change: WhatIf) -> Mapping[str, Any]:
    """Returns what the simulation finds, or `problem`. It takes seconds on a large cluster."""
    try:
        limits = Limits(text.seconds_of(change.horizon, "horizon"), CYCLES_MAX)
        edits = question.changes_of(
            [],
            namespace="default",
            queues=observation.snapshot.queues,
            add_nodes=change.add.split(),
            without_nodes=change.without.split(),
            quotas=change.quota.split(),
        )
        question.refuse_unused_queues(
            change.quota.split(), observation.snapshot.queues, observation.snapshot.jobs
        )
        found = simulate.answer(observation, edits, [], "default", limits)
    except UserError as error:
        return {"problem": str(error)}
    return {
        "headline": simulate.headline(found),
        "jobs": [
            {"name": job.name, "rows": simulate.rows(job, found)} for job in found.asked[:JOBS_MAX]
        ],
        "more": max(len(found.asked) - JOBS_MAX, 0),
        "others": simulate.other_rows(found)[:JOBS_MAX],
        "command": change.command,
    }


def what_if_page(change: WhatIf | None, found: Mapping[str, Any] | None, may_ask: bool) -> Page:
    values = {"change": change or WhatIf(), "may_ask": may_ask}
    sections = {"form": Section("what_if/form.html", values)}
    if found is not None:
        sections["answer"] = Section("what_if/answer.html", {"found": found})
    return Page("What if", sections, "/what-if")
