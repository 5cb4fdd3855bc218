"""kubectl gpujob what-if: the effect of an edit of jobs or of the cluster, by simulation.

It is `simulate` for existing jobs: the same edits, the same planning function, and the outcome
without the change next to the one with it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpujob_api.codec import FieldError, encode
from gpujob_api.gpujob import GPUJob, SpotPolicy
from gpujob_api.manifest import read_spec
from gpujob_operator.decide.simulation.run import Limits
from gpujob_operator.decide.simulation.timeline import JobTimeline
from kubectl_gpujob import text
from kubectl_gpujob.errors import EXIT_DONE, UsageError, UserError
from kubectl_gpujob.grammar import World, add_output, add_source, add_target
from kubectl_gpujob.screen import VERSION
from kubectl_gpujob.verbs import simulate

HELP = """
examples:
  kubectl gpujob what-if big --memory 10Gi       # would it start sooner?
  kubectl gpujob what-if big --priority 5        # which jobs would it preempt?
  kubectl gpujob what-if --without-node gpu-1    # which jobs would wait?

An edit of a running job counts as it would in the cluster: gpu.memory from its next attempt on.
"""
# Options that edit a spec, and the field that each one sets.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "memory": ("gpu", "memory"),
    "priority": ("priority",),
    "max_slowdown": ("sharing", "maxSlowdownPercent"),
    "spot": ("spot", "policy"),
    "queue": ("queue",),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = HELP
    add = parser.add_argument
    add("jobs", metavar="JOB", nargs="*", help="jobs to edit and to show")
    add("--memory", help="GPU memory of each GPU, such as 10Gi (spec.gpu.memory)")
    add("--priority", type=int, help="spec.priority")
    add("--max-slowdown", type=int, metavar="PERCENT", help="spec.sharing.maxSlowdownPercent")
    policies = tuple(policy.value for policy in SpotPolicy)
    add("--spot", type=str.capitalize, choices=policies, help="spec.spot.policy")
    add("--queue", help="spec.queue")
    simulate.add_cluster_edits(parser)
    add_source(parser)
    simulate.add_horizon(parser)
    add_target(parser)
    add_output(parser, "table", "json")


def run(options: argparse.Namespace, world: World) -> int:
    given = {name: getattr(options, name) for name in _FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    refuse_no_job(given, options.jobs)
    if not (given or options.add_nodes or options.without_node or options.quota):
        raise UsageError("no change is given, such as --memory 10Gi or --add-nodes NODE=1")
    limits = Limits(text.seconds_of(options.horizon, "--horizon"))
    start = simulate.start_of(options, world)
    before = start.observation.snapshot.jobs
    changes = simulate.edits_of(options, start)
    if given:
        changed = changed_jobs(before, options.jobs, start.namespace, given)
        changes = replace(changes, changed_jobs=changed)
    found = simulate.answer(
        start.observation, changes, options.jobs, start.namespace, limits, only_named=True
    )
    simulate.warn_of_claims(start, found, world)
    if options.output == "json":
        world.screen.json(as_json(found, given))
    else:
        _show(found, before, given, world)
    return EXIT_DONE


def refuse_no_job(given: Mapping[str, object], names: Sequence[str]) -> None:
    """Raises `UsageError` if fields of a job are given, and no job."""
    if given and not names:
        raise UsageError(f"{_option(next(iter(given)))} needs a JOB")


def changed_jobs(
    jobs: Sequence[GPUJob], names: Sequence[str], namespace: str, given: Mapping[str, object]
) -> tuple[GPUJob, ...]:
    """Returns the named jobs with the edits in their spec. Raises `UserError`."""
    there = {job.metadata.name: job for job in jobs if job.metadata.namespace == namespace}
    changed: list[GPUJob] = []
    for name in dict.fromkeys(names):
        if name not in there:
            raise UserError(f"not found: gpujob {name} in namespace {namespace}")
        if there[name].finished:
            raise UserError(f"gpujob {name} has finished, and no change starts it again")
        changed.append(with_fields(there[name], given))
    return tuple(changed)


def with_fields(job: GPUJob, given: Mapping[str, object]) -> GPUJob:
    """Returns the job with these fields, parsed and bounded as in a manifest."""
    spec = encode(job.spec)
    for name, value in given.items():
        *ways, last = _FIELDS[name]
        target: dict[str, Any] = spec
        for step in ways:
            target = target.setdefault(step, {})
        target[last] = value
    try:
        return replace(job, spec=read_spec(spec))
    except FieldError as error:
        names = {".".join(("spec", *path)): name for name, path in _FIELDS.items()}
        name = names.get(error.field)
        raise UserError(f"{_option(name) if name else error.field}: {error.problem}") from None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _field(job: GPUJob, name: str) -> str:
    value: Any = encode(job.spec)
    for step in _FIELDS[name]:
        value = value.get(step)
    return "none" if value is None else str(value)


def _show(
    found: simulate.Answer, before: Sequence[GPUJob], given: Mapping[str, object], world: World
) -> None:
    screen = world.screen
    screen.line(simulate.headline(found))
    for job in found.asked:
        screen.rows(job.name, rows(job, found, before, given))
    others = simulate.other_rows(found)
    if others:
        screen.rows("Others", others)
    else:
        other = "other " if found.asked else ""
        screen.line(f"No {other}job starts at another time or is interrupted differently.")


def rows(
    job: JobTimeline, found: simulate.Answer, before: Sequence[GPUJob], given: Mapping[str, object]
) -> list[simulate.Row]:
    """Returns the changed fields of a job, and its outcome without and with the change."""
    uid = job.job.metadata.uid
    unchanged = next(one for one in before if one.metadata.uid == uid)
    found_rows = [
        ("Change", f"spec.{'.'.join(path)}: {_field(unchanged, name)} -> {given[name]}")
        for name, path in _FIELDS.items()
        if name in given
    ]
    without = found.before.jobs.get(uid) if found.before is not None else None
    old, new = _outcome(without, found), _outcome(job, found)
    return [*found_rows, ("Before", old), ("After", "the same" if new == old else new)]


def _outcome(job: JobTimeline | None, found: simulate.Answer) -> str:
    parts = simulate.rows(job, found) if job is not None else []
    return "; ".join(f"{label} {value}" for label, value in parts) or "nothing happens to it"


def as_json(found: simulate.Answer, given: Mapping[str, object]) -> dict[str, Any]:
    changes = {"spec." + ".".join(_FIELDS[name]): value for name, value in given.items()}
    before = found.before.jobs if found.before is not None else {}
    jobs = [
        simulate.difference_json(before[job.job.metadata.uid], job)
        for job in found.asked
        if job.job.metadata.uid in before
    ]
    head = {"apiVersion": VERSION, "kind": "WhatIf", "changes": changes}
    return {**head, **simulate.as_json(found), "jobs": jobs}
