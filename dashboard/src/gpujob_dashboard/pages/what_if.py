"""A change of the cluster or of one job, answered by simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpujob_dashboard.pages.contents import Page, Query, Section, text_of
from gpujob_operator.decide.simulation.run import Limits
from kubectl_gpujob import question, text
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.mounted import named_claims
from kubectl_gpujob.observations import Observation
from kubectl_gpujob.verbs import simulate, what_if

# Bounds the time of an answer. The command has higher limits.
CYCLES_MAX = 500
HORIZON = "24h"
JOBS_MAX = 50
_FIELDS = ("job", "memory", "priority", "slowdown", "add", "without", "quota", "horizon")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The change that was entered, each field as on the command line."""

    # The namespace and the name of the job to change.
    job: str = ""
    memory: str = ""
    priority: str = ""
    slowdown: str = ""
    add: str = ""
    without: str = ""
    quota: str = ""
    horizon: str = HORIZON

    @property
    def namespace(self) -> str:
        return self.job.rpartition("/")[0] or "default"

    @property
    def names(self) -> Sequence[str]:
        """The name of the job, if there is one."""
        return [name] if (name := self.job.rpartition("/")[2]) else []

    @property
    def of_job(self) -> Mapping[str, object]:
        """The fields of the job, by the options of the command. Raises `UserError`."""
        given: dict[str, object] = {"memory": self.memory} if self.memory else {}
        for option, entry in (("priority", self.priority), ("max_slowdown", self.slowdown)):
            if entry:
                given[option] = _number(entry, option)
        return given

    @property
    def command(self) -> str:
        """The command that gives the same answer."""
        parts = [f"kubectl gpujob {'what-if' if self.of_job else 'simulate'}", *self.names]
        parts += [f"-n {self.namespace}"] if self.names else []
        parts += [f"--{name.replace('_', '-')} {value}" for name, value in self.of_job.items()]
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
    """Returns what the simulation finds, or `problem`. It takes seconds on a large cluster.

    `claims` are those of the shown jobs. The caller adds `warnings` of those that do not exist.
    """
    before, namespace = observation.snapshot.jobs, change.namespace
    try:
        given = change.of_job
        what_if.refuse_no_job(given, change.names)
        limits = Limits(text.seconds_of(change.horizon, "horizon"), CYCLES_MAX)
        edits = question.changes_of(
            {},
            namespace=namespace,
            queues=observation.snapshot.queues,
            add_nodes=change.add.split(),
            without_nodes=change.without.split(),
            quotas=change.quota.split(),
        )
        question.refuse_unused_queues(change.quota.split(), observation.snapshot.queues, before)
        if given:
            changed = what_if.changed_jobs(before, change.names, namespace, given)
            edits = replace(edits, changed_jobs=changed)
        found = simulate.answer(observation, edits, change.names, namespace, limits)
    except UserError as error:
        return {"problem": str(error)}
    return {
        "headline": simulate.headline(found),
        "jobs": [
            {
                "name": job.name,
                "rows": what_if.rows(job, found, before, given)
                if given
                else simulate.rows(job, found),
            }
            for job in found.asked[:JOBS_MAX]
        ],
        "more": max(len(found.asked) - JOBS_MAX, 0),
        "others": simulate.other_rows(found)[:JOBS_MAX],
        "command": change.command,
        "claims": named_claims(simulate.unplaced(found)),
    }


def _number(entry: str, option: str) -> int:
    try:
        return int(entry)
    except ValueError:
        name = option.replace("_", "-")
        raise UserError(f"--{name}: must be a whole number; got {entry!r}") from None


def what_if_page(change: WhatIf | None, found: Mapping[str, Any] | None, may_ask: bool) -> Page:
    values = {"change": change or WhatIf(), "may_ask": may_ask}
    sections = {"form": Section("what_if/form.html", values)}
    if found is not None:
        sections["answer"] = Section("what_if/answer.html", {"found": found})
    return Page("What if", sections, "/what-if")
