"""The groups of jobs, kept up to date change by change, are those of the jobs at that time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.manifest import to_manifest
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_dashboard.groups import (
    FAILED,
    OLDEST_WAITING,
    RUNNING,
    RUNNING_AT_RISK,
    STATES,
    WAITING,
    WAITING_IN_DOUBT,
    Groups,
    Members,
    groups_of,
    state_of_job,
)
from gpujob_dashboard.watched import WatchedKind, watched_jobs
from tests.harness.builders import T0, after, make_job, placed, running, with_status
from tests.harness.dashboard import waiting
from tests.harness.manifests import Manifest

NAMESPACES = ("team-a", "team-b", "team-c")
NAMES = ("one", "two", "three")
GPUS = ("GPU-0", "GPU-1", "GPU-2")
KEYS = st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(NAMES))
REASONS = ("InsufficientCapacity", "ClaimNotFound", "Unsatisfiable")


def true(kind: str) -> Condition:
    return Condition(
        type=kind, status=ConditionStatus.TRUE, reason="R", message="m",
        last_transition_time=T0, observed_generation=1,
    )  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn) -> GPUJob:
    namespace, name = draw(KEYS)
    priority, suspend = draw(st.integers(0, 2)), draw(st.booleans())
    # As in the API server, another spec has another generation.
    generation = 1 + 2 * priority + suspend
    job = make_job(
        name, namespace=namespace, uid=f"{namespace}-{name}-{draw(st.integers(0, 1))}",
        created=draw(st.integers(0, 3)), priority=priority, suspend=suspend, generation=generation,
    )  # fmt: skip
    observed = draw(st.sampled_from([generation - 1, generation]))
    match draw(st.sampled_from(["waits", "runs", "failed", "succeeded", "new"])):
        case "waits":
            job = waiting(job, draw(st.sampled_from(REASONS)), "a reason")
        case "runs":
            kinds = draw(st.sets(st.sampled_from(["Unprotected", "Untuned"])))
            gpus = tuple(draw(st.sets(st.sampled_from(GPUS), min_size=1)))
            job = placed(
                job, ("n0", gpus), phase=JobPhase.RUNNING, conditions=tuple(map(true, kinds))
            )
            spot = draw(st.booleans())
            assert job.status.placement is not None
            job = with_status(job, placement=replace(job.status.placement, spot=spot))
        case "failed" | "succeeded" as end:
            at = draw(st.none() | st.integers(0, 3))
            job = with_status(
                job, phase=JobPhase(end.capitalize()),
                finished_at=after(at) if at is not None else None,
            )  # fmt: skip
        case _:
            pass
    return with_status(job, observed_generation=observed)


def unreadable(job: GPUJob) -> Manifest:
    item = to_manifest(job)
    # Another version of the CRD accepted it, so its generation is another one.
    item["metadata"]["generation"] = 99
    return {**item, "spec": {**item["spec"], "workers": "many"}}


DIFFERENT = st.lists(jobs(), max_size=9, unique_by=lambda job: job.metadata.key)
CHANGES = st.tuples(st.sampled_from(["put", "break", "drop"]), jobs().map(lambda job: [job]))
REPLACEMENTS = st.tuples(st.just("replace"), DIFFERENT)


def apply(kind: WatchedKind[GPUJob], change: str, found: Sequence[GPUJob]) -> None:
    match change:
        case "put":
            kind.put(to_manifest(found[0]))
        case "break":
            kind.put(unreadable(found[0]))
        case "drop":
            kind.drop(to_manifest(found[0]))
        case _:
            kind.replace([to_manifest(job) for job in found])


RIGHTS = st.none() | st.frozensets(st.sampled_from((*NAMESPACES, "team-z")))


def contents(groups: Groups, namespaces: frozenset[str] | None) -> dict[str, list[GPUJob]]:
    return {name: list(members) for name, members in groups.seen(namespaces).items()}


@given(changes=st.lists(CHANGES | REPLACEMENTS, max_size=9), namespaces=RIGHTS)
def test_any_changes_lead_to_the_groups_of_the_remaining_jobs(
    changes: Sequence[tuple[str, Sequence[GPUJob]]], namespaces: frozenset[str] | None
) -> None:
    groups = Groups()
    kind = watched_jobs("team", groups)
    for change, found in changes:
        apply(kind, change, found)
        assert groups == groups_of(kind.objects.values())
    visible = [
        job
        for job in kind.objects.values()
        if namespaces is None or job.metadata.namespace in namespaces
    ]
    assert contents(groups, namespaces) == grouped(visible)
    assert groups.held.keys() == set(gpus_of(kind.objects.values()))
    assert set(groups.namespaces) == {namespace for namespace, _ in kind.objects}


def grouped(visible: Sequence[GPUJob]) -> dict[str, list[GPUJob]]:
    """The groups by their definitions, from all jobs."""

    def name(job: GPUJob) -> tuple[Any, ...]:
        return job.metadata.namespace, job.metadata.name

    def age(job: GPUJob) -> tuple[Any, ...]:
        return job.metadata.creation_timestamp, *name(job)

    def turn(job: GPUJob) -> tuple[Any, ...]:
        return -job.spec.priority, job.metadata.creation_timestamp, job.metadata.uid

    def end(job: GPUJob) -> tuple[Any, ...]:
        ended = job.status.finished_at
        return ended is None, -ended.timestamp() if ended is not None else 0, *name(job)

    of = {state: [job for job in visible if state_of_job(job) == state] for state in STATES}
    orders = {WAITING: turn, FAILED: end, "succeeded": end}
    found = {state: sorted(of[state], key=orders.get(state, name)) for state in STATES}
    found[RUNNING_AT_RISK] = [job for job in found[RUNNING] if at_risk(job)]
    found[WAITING_IN_DOUBT] = [job for job in found[WAITING] if in_doubt(job)]
    found[OLDEST_WAITING] = sorted(of[WAITING], key=age)
    return found


def at_risk(job: GPUJob) -> bool:
    kinds = {condition.type for condition in job.status.conditions}
    assert job.status.placement is not None
    return "Untuned" in kinds or ("Unprotected" in kinds and job.status.placement.spot)


def in_doubt(job: GPUJob) -> bool:
    reasons = {condition.reason for condition in job.status.conditions}
    return (
        not reasons.isdisjoint(REASONS[1:])
        or job.status.observed_generation < job.metadata.generation
    )


def gpus_of(found: Iterable[GPUJob]) -> Iterator[str]:
    for job in found:
        if state_of_job(job) == RUNNING and job.status.placement is not None:
            for worker in job.status.placement.workers:
                yield from worker.gpus


@given(found=DIFFERENT, part=st.slices(9))
def test_a_part_of_a_group_is_that_part_of_all_of_it(found: Sequence[GPUJob], part: slice) -> None:
    for members in groups_of(found).seen(None).values():
        whole = list(members)
        assert len(members) == len(whole)
        assert members[part] == whole[part]
        assert [members[number] for number in range(len(whole))] == whole
        with pytest.raises(IndexError):
            members[len(whole)]


@given(found=DIFFERENT)
def test_recent_ends_are_counted_in_all_namespaces(found: Sequence[GPUJob]) -> None:
    failed = groups_of(found).seen(None)[FAILED]
    for moment in map(after, (-1, 0, 1, 2, 3)):
        ends = [job.status.finished_at for job in failed]
        assert failed.ended_after(moment) == sum(end is not None and end > moment for end in ends)


def test_a_page_of_a_long_list_looks_up_its_rows_alone() -> None:
    class Counted(dict[tuple[str, str], GPUJob]):
        asked = 0

        def __getitem__(self, key: tuple[str, str]) -> GPUJob:
            self.asked += 1
            return super().__getitem__(key)

    known = Counted()
    for number in range(500):
        key = (f"team-{number % 5}", f"job-{number:03}")
        known[key] = running(make_job(key[1], namespace=key[0]))
    lists = [sorted(((), key) for key in known if key[0] == f"team-{n}") for n in range(5)]
    members = Members(lists, known)
    assert len(members[:50]) == 50
    assert len(members) == 500
    assert known.asked == 50


def test_a_known_spec_is_not_read_again() -> None:
    kind = watched_jobs("team", Groups())
    job = make_job("train", uid="u")
    kind.put(to_manifest(job))
    [first] = kind.objects.values()
    kind.put(to_manifest(running(job)))
    [second] = kind.objects.values()
    assert second.spec is first.spec
    assert second.status.phase is JobPhase.RUNNING


@pytest.mark.parametrize(("uid", "generation"), [("u", 2), ("v", 1)])
def test_the_spec_of_another_generation_or_another_job_is_read(uid: str, generation: int) -> None:
    kind = watched_jobs("team", Groups())
    kind.put(to_manifest(make_job("train", uid="u", generation=1, priority=1)))
    kind.put(to_manifest(make_job("train", uid=uid, generation=generation, priority=7)))
    [job] = kind.objects.values()
    assert job.spec.priority == 7
