"""kubectl gpujob simulate: the operator's future decisions, as text and as JSON."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpujob_api.codec import FieldError, encode
from gpujob_api.gpujob import GPUJob, Placement
from gpujob_api.quantities import format_count, format_memory
from gpujob_operator.decide.model.stop_reasons import rule_for
from gpujob_operator.decide.simulation.comparison import Difference, differences
from gpujob_operator.decide.simulation.edits import ADDED_UID, Edits, edited
from gpujob_operator.decide.simulation.run import Limits, simulate
from gpujob_operator.decide.simulation.timeline import JobTimeline, Placed, Stopped, Timeline
from kubectl_gpujob import question, text
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import EXIT_DONE, UserError
from kubectl_gpujob.grammar import World, add_output, add_source, add_target
from kubectl_gpujob.mounted import missing_claims
from kubectl_gpujob.observations import (
    Observation,
    observation_from_cluster,
    observation_from_dump,
)

Row = tuple[str, str]
NODES_SHOWN = 4
HELP = """
Shows where and when jobs would start and which jobs they would preempt, or why they stay pending,
and what changes for other jobs. Without files and names, it shows all pending jobs. Running jobs
continue at their measured pace; nothing is measured, and no job fails. It lists nodes, pods of all
namespaces and the kinds of gpujob.dev, or reads a dump.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = HELP
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="jobs to show")
    parser.add_argument(
        "-f", "--filename", type=Path, action="append", default=[], metavar="FILE",
        help="GPUJobs to add, GPUQueues to set; - is standard input",
    )  # fmt: skip
    add_cluster_edits(parser)
    add_source(parser)
    add_horizon(parser)
    add_target(parser)
    add_output(parser, "table", "json")


def add_cluster_edits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--add-nodes", action="append", default=[], metavar="NODE=COUNT",
        help="add COUNT idle nodes like NODE",
    )  # fmt: skip
    parser.add_argument(
        "--without-node", action="append", default=[], metavar="NODE", help="remove NODE now"
    )
    parser.add_argument(
        "--quota", action="append", default=[], metavar="QUEUE.FIELD=VALUE",
        help="set a quota; FIELD is gpus, gpuMemory (both nominal), borrowingLimit.gpus, "
        "borrowingLimit.gpuMemory or weight",
    )  # fmt: skip


def add_horizon(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--horizon", default="24h", help="how far to simulate: 90s, 30m, 24h (default), 7d"
    )


def run(options: argparse.Namespace, world: World) -> int:
    limits = Limits(text.seconds_of(options.horizon, "--horizon"))
    start = start_of(options, world)
    files = question.read_files(options.filename)
    changes = edits_of(options, start, files)
    found = answer(start.observation, changes, options.jobs, start.namespace, limits)
    warn_of_claims(start, found, world, files)
    screen = world.screen
    if options.output == "json":
        screen.json(as_json(found))
        return EXIT_DONE
    screen.line(headline(found))
    if not found.asked:
        screen.line("no pending jobs")
    for job in found.asked:
        screen.rows(job.name, rows(job, found))
    others = other_rows(found)
    if others:
        screen.rows("Others", others)
    return EXIT_DONE


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a simulation, and the namespace of the jobs that options name."""

    observation: Observation
    namespace: str
    # None for a dump.
    cluster: Cluster | None


def start_of(options: argparse.Namespace, world: World) -> Start:
    """Reads the cluster, or the dump of `--from`. Raises `UserError`."""
    if options.source is None:
        cluster = world.cluster(options)
        observation = observation_from_cluster(cluster, options.configuration)
        return Start(observation, cluster.namespace, cluster)
    observation = observation_from_dump(options.source, options.configuration)
    return Start(observation, options.namespace or "default", None)


def edits_of(
    options: argparse.Namespace, start: Start, files: Mapping[str, str] | None = None
) -> Edits:
    """Returns the edits of files and of the options of `add_cluster_edits`. Raises `UserError`."""
    before = start.observation.snapshot
    changes = question.changes_of(
        files or {},
        namespace=start.namespace,
        queues=before.queues,
        add_nodes=options.add_nodes,
        without_nodes=options.without_node,
        quotas=options.quota,
        refusal=start.cluster.refusal if start.cluster is not None else None,
    )
    question.refuse_unused_queues(options.quota, before.queues, (*before.jobs, *changes.jobs))
    return changes


def warn_of_claims(
    start: Start, found: "Answer", world: World, files: Mapping[str, str] | None = None
) -> None:
    """Warns of claims of the shown jobs that exist neither in the cluster nor in the files."""
    if start.cluster is not None:
        given = question.claims_in(files or {}, start.namespace)
        for warning in missing_claims(start.cluster, unplaced(found), given):
            world.screen.note(f"warning: {warning}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The timeline with the edits, and the jobs for which it differs from the one without."""

    source: str
    now: datetime
    horizon_seconds: float
    timeline: Timeline
    asked: tuple[JobTimeline, ...]
    others: tuple[Difference, ...]
    # The timeline without the edits, if there are any.
    before: Timeline | None = None


def answer(
    observation: Observation,
    changes: Edits,
    names: Sequence[str],
    namespace: str,
    limits: Limits,
    *,
    only_named: bool = False,
) -> Answer:
    """Runs `plan` with the edits and, if there are any, without. Raises `UserError`.

    `names` are jobs of the namespace to show. Without any: the added jobs, else all pending ones,
    or none with `only_named`.
    """
    before, now = observation.snapshot, observation.now
    try:
        after = edited(before, changes, now)
    except FieldError as error:
        raise UserError(_option(error)) from None
    asked = _asked(after.jobs, names, namespace) if names or not only_named else []
    timeline = simulate(after, now, limits)
    others: tuple[Difference, ...] = ()
    without = simulate(before, now, limits) if changes.any else None
    if without is not None:
        found = differences(without, timeline)
        others = tuple(one for one in found if one.after.job.metadata.uid not in asked)
    shown = tuple(timeline.jobs[uid] for uid in asked if uid in timeline.jobs)
    return Answer(observation.source, now, limits.horizon_seconds, timeline, shown, others, without)


def unplaced(found: Answer) -> list[GPUJob]:
    """Returns the shown jobs that hold no GPU yet. The claims of all others are mounted."""
    return [one.job for one in found.asked if one.ran_before is None]


def _option(error: FieldError) -> str:
    """Returns the option to which the field belongs."""
    options = {"without node": "--without-node", "more nodes": "--add-nodes"}
    return f"{options.get(error.field, error.field)}: {error.problem}"


def _asked(jobs: Iterable[GPUJob], names: Sequence[str], namespace: str) -> list[str]:
    """Returns the UIDs of the jobs to show, in order."""
    here = {job.metadata.name: job for job in jobs if job.metadata.namespace == namespace}
    missing = [name for name in names if name not in here]
    if missing:
        raise UserError(f"not found: gpujob {missing[0]} in namespace {namespace}")
    added = [job for job in jobs if job.metadata.uid.startswith(ADDED_UID)]
    waiting = [
        job
        for job in jobs
        if not job.finished and job.status.placement is None and not job.spec.suspend
    ]
    chosen = [here[name] for name in names] + added or waiting
    return [job.metadata.uid for job in chosen]


# -- as text


def headline(found: Answer) -> str:
    ahead = text.duration(found.timeline.seconds)
    why = {
        "no pending jobs": "until no job was pending",
        "horizon": f"up to the horizon of {text.duration(found.horizon_seconds)}",
        "cycles": "the limit; give a shorter --horizon",
    }[found.timeline.ended]
    when = f"{found.now:%Y-%m-%d %H:%M:%S} UTC"
    how_far = f"{format_count(found.timeline.cycles, 'cycle')}, {ahead} ahead, {why}"
    return f"Simulated from {found.source} of {when}: {how_far}. Nothing was written."


def rows(job: JobTimeline, found: Answer) -> list[Row]:
    """Returns the rows of one job: why it waits, where and when it starts, and what
    happens to it.
    """
    events: list[tuple[float, Row]] = [(one.seconds, _placed(one)) for one in job.placed]
    events += [
        (one.seconds, ("Interrupted", f"{_in(one.seconds)}: {_stopped(one)}"))
        for one in job.stopped
    ]
    events += [(one.seconds, ("Pending", f"{one.reason}: {one.message}")) for one in job.waited[:1]]
    found_rows: list[Row] = []
    if job.ran_before is not None:
        found_rows.append(("Runs", f"already on {_where(job.ran_before)}"))
    found_rows += [row for _, row in sorted(events, key=lambda event: event[0])]
    if job.finished_seconds is not None:
        found_rows.append((job.phase.value, _in(job.finished_seconds)))
    elif job.waits_in_the_end:
        again = " again" if job.ran_before is not None or job.placed else ""
        found_rows.append((f"Not placed{again}", f"within {text.duration(found.timeline.seconds)}"))
        found_rows += [("In the end", f"{one.reason}: {one.message}") for one in job.waited[1:]]
    return found_rows


def _stopped(one: Stopped) -> str:
    """Returns the operator's message. A stop for another job's sake already includes the loss."""
    lost = f"; loses {one.lost_gpu_seconds:.0f} GPU-seconds"
    return f"{one.reason}: {one.message}{'' if rule_for(one.reason).for_others else lost}"


def other_rows(found: Answer) -> list[Row]:
    """Returns the changes for existing jobs."""
    return [(one.after.name, _change(one, found)) for one in found.others]


def _change(one: Difference, found: Answer) -> str:
    parts: list[str] = []
    before, after = one.before.starts_seconds, one.after.starts_seconds
    if one.starts_otherwise:
        parts.append(_start_change(before, after, found.timeline.seconds))
    if one.stops_otherwise:
        parts += _stop_changes(one)
    return "; ".join(parts)


def _start_change(before: float | None, after: float | None, seconds: float) -> str:
    within = f"within {text.duration(seconds)}"
    if after is None and before is not None:
        return f"does not start {within} instead of {_in(before)}"
    if after is not None and before is None:
        return f"starts {_in(after)} instead of not {within}"
    assert before is not None, "one of them is known"
    assert after is not None, "one of them is known"
    word = "later" if after > before else "earlier"
    by = text.duration(abs(after - before))
    return f"starts {by} {word}: {_in(after)} instead of {_in(before)}"


def _stop_changes(one: Difference) -> list[str]:
    known = [stop.reason for stop in one.before.stopped]
    new = [stop for stop in one.after.stopped if stop.reason not in known]
    parts = [f"is interrupted {_in(stop.seconds)} ({_stopped(stop)})" for stop in new]
    if len(one.after.stopped) < len(known):
        parts.append(f"is interrupted {len(one.after.stopped)} times instead of {len(known)}")
    if new:
        again = next((p for p in one.after.placed if p.seconds >= new[0].seconds), None)
        where = f"resumes {_in(again.seconds)} on {_where(again.placement)}" if again else ""
        parts.append(where or "does not resume in this time")
    return parts or ["is interrupted differently"]


def _placed(one: Placed) -> Row:
    held = one.reservation
    whole = "a whole GPU" if held.exclusive else format_memory(held.memory_bytes)
    return (
        "Placed",
        f"{_in(one.seconds)} on {_where(one.placement)}, reserves {whole} ({held.source.value})",
    )


def _where(placement: Placement) -> str:
    nodes: dict[str, list[str]] = {}
    for worker in placement.workers:
        nodes.setdefault(worker.node, []).extend(worker.gpus)
    parts = [f"{node} ({', '.join(gpus)})" for node, gpus in nodes.items()]
    more = f" and {len(parts) - NODES_SHOWN} more nodes" if len(parts) > NODES_SHOWN else ""
    spot = ", spot" if placement.spot else ""
    return f"{', '.join(parts[:NODES_SHOWN])}{more}{spot}"


def _in(seconds: float) -> str:
    return "at once" if seconds < 1 else f"in {text.duration(seconds)}"


# -- as JSON


def as_json(found: Answer) -> dict[str, Any]:
    return {
        "source": found.source,
        "now": found.now.isoformat().replace("+00:00", "Z"),
        "horizonSeconds": found.horizon_seconds,
        "simulatedSeconds": round(found.timeline.seconds, 1),
        "cycles": found.timeline.cycles,
        "ended": found.timeline.ended,
        "jobs": [_job_json(job) for job in found.asked],
        "others": [difference_json(one.before, one.after) for one in found.others],
    }


def difference_json(before: JobTimeline, after: JobTimeline) -> dict[str, Any]:
    return {
        "namespace": after.job.metadata.namespace,
        "name": after.job.metadata.name,
        "without": _outcome_json(before),
        "with": _outcome_json(after),
    }


def _job_json(job: JobTimeline) -> dict[str, Any]:
    metadata = job.job.metadata
    return {
        "namespace": metadata.namespace,
        "name": metadata.name,
        **_outcome_json(job),
        "waits": [encode(one) for one in job.waited],
    }


def _outcome_json(job: JobTimeline) -> dict[str, Any]:
    """Returns the outcome of a job. Times are in seconds from now, and null for events that do not
    happen.
    """
    return {
        "startsSeconds": _rounded(job.starts_seconds),
        "finishedSeconds": _rounded(job.finished_seconds),
        "phase": job.phase.value,
        "lostGpuSeconds": _rounded(job.lost_gpu_seconds),
        "placements": [encode(replace(one, seconds=round(one.seconds, 1))) for one in job.placed],
        "interruptions": [
            encode(replace(one, seconds=round(one.seconds, 1))) for one in job.stopped
        ],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
