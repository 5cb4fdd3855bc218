"""I11: the quota of trees of queues is what docs/design/0027 says, and what follows from it."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, SharingMode
from gpujob_api.gpuqueue import GPUQueue, Quota
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.quantities import FleetMemory
from gpujob_operator.decide.model.conditions import ACCEPTED
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.stop_reasons import RECLAIMED
from gpujob_operator.decide.planner import plan
from gpujob_operator.decide.queue.quota import QuotaState
from gpujob_operator.decide.queue.tree import QueueTree
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_snapshot,
    reserve,
    running,
)
from tests.harness.queues import queues_of
from tests.harness.world import World
from tests.property.queue_trees import NAMES, trees
from tests.property.quota_reference import Reference

pytestmark = pytest.mark.promise("I11")

# Enough for all jobs of these worlds: only quota is in the way.
GPUS = 40


@st.composite
def sizes(draw: st.DrawFn, count_max: int) -> list[tuple[str, int]]:
    """The queue and the GPUs of each of some jobs."""
    return draw(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 3)), max_size=count_max))


def job_of(name: str, queue: str, gpus: int, created: float = 0.0) -> GPUJob:
    return make_job(
        name, queue=queue, gpus_per_worker=gpus, sharing=SharingMode.EXCLUSIVE, created=created
    )


def held_by(queues: tuple[GPUQueue, ...], wanted: list[tuple[str, int]]) -> list[GPUJob]:
    """Running jobs, each on GPUs of its own."""
    jobs: list[GPUJob] = []
    names = {queue.metadata.name for queue in queues}
    first = 0
    for number, (queue, gpus) in enumerate(wanted):
        if queue in names:
            uuids = tuple(f"GPU-{n}" for n in range(first, first + gpus))
            job = running(
                job_of(f"run{number}", queue, gpus), ("n0", uuids), progressed_at=after(499)
            )
            jobs.append(replace(job, status=replace(job.status, queue=queue)))
            first += gpus
    return jobs


def use_of(jobs: list[GPUJob]) -> Counter[str]:
    found: Counter[str] = Counter()
    for job in jobs:
        found[job.spec.queue] += job.spec.gpus
    return found


def reference_of(queues: tuple[GPUQueue, ...]) -> Reference:
    return Reference({queue.metadata.name: queue for queue in queues})


def snapshot_of(queues: tuple[GPUQueue, ...], *jobs: GPUJob) -> Snapshot:
    gpus = [make_gpu(f"GPU-{n}", index=n) for n in range(GPUS)]
    pods = [pod for job in jobs if holds_gpus(job) for pod in make_pods(job)]
    node = make_gpu_node("n0", *gpus, at=500)
    return make_snapshot(*jobs, pods=pods, gpu_nodes=[node], queues=_reported(queues))


def _reported(queues: tuple[GPUQueue, ...]) -> tuple[GPUQueue, ...]:
    """The queues with conditions that report a missing parent since long ago.

    One that is missing since a moment may be replaced, and its jobs are not stopped for that.
    """
    problems = QueueTree({queue.metadata.name: queue for queue in queues}).problems
    found: list[GPUQueue] = []
    for queue in queues:
        problem = problems.get(queue.metadata.name)
        if problem is not None:
            condition = Condition(
                ACCEPTED, ConditionStatus.FALSE, problem.reason, problem.message, after(0)
            )
            queue = replace(queue, status=replace(queue.status, conditions=(condition,)))
        found.append(queue)
    return tuple(found)


def statuses_of(snapshot: Snapshot) -> dict[str, GPUJobStatus]:
    items = plan(snapshot, after(500)).items
    return {one.job.metadata.name: one.status for one in items if isinstance(one, WriteStatus)}


@settings(max_examples=300)
@given(trees(), sizes(12), st.integers(1, 3), st.sets(st.integers(0, 11), max_size=3))
def test_every_answer_is_that_of_the_rule(
    queues: tuple[GPUQueue, ...], wanted: list[tuple[str, int]], gpus: int, ended: set[int]
) -> None:
    """Whoever has ended counts until the next cycle, and gives nobody more or less right."""
    jobs = held_by(queues, wanted)
    state, reference = queues_of(queues, jobs), reference_of(queues)
    gone = [job for number, job in enumerate(jobs) if number in ended]
    left = use_of(jobs) - use_of(gone)
    state.note_ended(gone)
    for name in reference.queues:
        entitled = reference.is_entitled(name, gpus, left)
        assert state.would_borrow(job_of("new", name, gpus), 1) != entitled
    with state.simulate_removal(gone):
        _answers_by_the_rule(state, reference, left, gpus)
    if not gone:
        _answers_by_the_rule(state, reference, left, gpus)


def _answers_by_the_rule(
    state: QuotaState, reference: Reference, use: Counter[str], gpus: int
) -> None:
    for name in reference.queues:
        job = job_of("new", name, gpus)
        assert (state.quota_shortfall(job, 1) == "") == reference.is_allowed(name, gpus, use)
        assert state.would_borrow(job, 1) != reference.is_entitled(name, gpus, use)
        for other in reference.queues:
            given_back = reference.gives_back(other, name, use)
            assert state.can_be_reclaimed_for(other, name) == given_back, (other, name)


@settings(max_examples=300)
@given(trees(), sizes(12), st.integers(1, 3))
def test_an_equal_right_is_between_entitled_and_ever_possible(
    queues: tuple[GPUQueue, ...], wanted: list[tuple[str, int]], gpus: int
) -> None:
    """Who is entitled needs nobody to leave; and who has no quota in an empty cluster never gets
    any by waiting.
    """
    jobs = held_by(queues, wanted)
    state, empty, reference = queues_of(queues, jobs), queues_of(queues, []), reference_of(queues)
    for name in reference.queues:
        job = job_of("new", name, gpus)
        without_loan = state.has_equal_right(job, 1, borrows=False)
        with_loan = state.has_equal_right(job, 1, borrows=True)
        assert without_loan or not reference.is_entitled(name, gpus, use_of(jobs))
        assert not without_loan or reference.is_entitled(name, gpus, Counter())
        assert with_loan or not without_loan
        assert not with_loan or reference.is_allowed(name, gpus, Counter())
        assert not with_loan or not empty.quota_shortfall(job, 1)


@settings(max_examples=300)
@given(trees(), sizes(12), st.integers(1, 3))
def test_kept_quota_is_never_what_is_promised_to_a_queue_alone(
    queues: tuple[GPUQueue, ...], wanted: list[tuple[str, int]], gpus: int
) -> None:
    """A queue below its own nominal quota, whose parents promise no more than they have."""
    jobs = held_by(queues, wanted)
    state, reference = queues_of(queues, jobs), reference_of(queues)
    use = use_of(jobs)
    state.hold_shared_quota((name, 0) for name in reference.queues)
    for name in reference.queues:
        way = reference.up(name)
        promised = [sum(reference.nominal(c) or 0 for c in reference.children(up)) for up in way]
        is_promised_once = all(
            total <= (reference.nominal(up) or 0) for up, total in zip(way, promised, strict=True)
        )
        held = state.held_for_another(job_of("new", name, gpus), 1)
        nominal = reference.nominal(name)
        if name in held or not held or nominal is None or not is_promised_once:
            continue
        assert reference.total(name, use) + gpus > nominal


@settings(max_examples=100)
@given(trees(), sizes(12), st.integers(1, 3))
def test_memory_counts_as_gpus_do(
    queues: tuple[GPUQueue, ...], wanted: list[tuple[str, int]], gpus: int
) -> None:
    """The same arithmetic, of the other kind: each GPU is reserved with one byte. A queue without a
    parent that counts has no GPUs whatever memory it has, so there are none of these.
    """
    reference = reference_of(queues)
    assume(not any(reference.is_broken(name) for name in reference.queues))
    jobs = [
        replace(job, status=replace(job.status, reservation=reserve(1)))
        for job in held_by(queues, wanted)
    ]
    state = queues_of([of_memory(queue) for queue in queues], jobs)
    _answers_by_the_rule(state, reference, use_of(jobs), gpus)


def of_memory(queue: GPUQueue) -> GPUQueue:
    """The queue with as many bytes of quota as it has GPUs."""

    def bytes_of(quota: Quota) -> Quota:
        return Quota(gpu_memory=None if quota.gpus is None else FleetMemory(quota.gpus))

    spec = queue.spec
    nominal, limit = bytes_of(spec.nominal), bytes_of(spec.borrowing_limit)
    return replace(queue, spec=replace(spec, nominal=nominal, borrowing_limit=limit))


@settings(max_examples=150)
@given(trees(), sizes(8), st.sampled_from(NAMES), st.integers(1, 3))
def test_a_job_is_placed_or_reclaims_or_waits_as_the_rule_says(
    queues: tuple[GPUQueue, ...], wanted: list[tuple[str, int]], name: str, gpus: int
) -> None:
    """Nobody within what is promised to it loses a job while another gives back; who is entitled
    never waits for nothing."""
    reference, jobs = reference_of(queues), held_by(queues, wanted)
    assume(name in reference.queues)
    use, job = use_of(jobs), job_of("new", name, gpus, 400)
    found = statuses_of(snapshot_of(queues, *jobs, job))
    stopped = [one for one in jobs if one.metadata.name in found and _is_stopped(found, one)]
    assert (found["new"].placement is not None) == reference.is_allowed(name, gpus, use)
    if not stopped:
        entitled = reference.is_promised_any(name) and reference.is_entitled(name, gpus, use)
        assert found["new"].placement is not None or not entitled
        return
    assert reference.is_entitled(name, gpus, use)
    victims = [(one.spec.queue, one.spec.gpus) for one in stopped]
    if len(victims) <= 5:
        assert reference.may_all_go(victims, name, use)
    left = use - use_of(stopped)
    assert reference.is_allowed(name, gpus, left)
    for one in stopped:
        assert not reference.is_allowed(name, gpus, left + use_of([one])) or not (
            reference.may_all_go(
                [(each.spec.queue, each.spec.gpus) for each in stopped if each is not one],
                name,
                use,
            )
        ), "one was stopped that need not be"


def _is_stopped(found: dict[str, GPUJobStatus], job: GPUJob) -> bool:
    stop = found[job.metadata.name].stop
    assert stop is None or stop.reason == RECLAIMED
    return stop is not None


@settings(max_examples=60)
@given(trees(), sizes(10), sizes(10))
def test_worlds_come_to_rest_within_their_quotas(
    queues: tuple[GPUQueue, ...], first: list[tuple[str, int]], later: list[tuple[str, int]]
) -> None:
    """Two waves of jobs: what was lent to the first is given back to the second, once."""
    reference = reference_of(queues)
    gpus = [make_gpu(f"GPU-{n}", index=n) for n in range(2 * GPUS)]
    world = World(gpu_nodes=[make_gpu_node("n0", *gpus)], queues=queues)
    for wave, wanted in enumerate((first, later)):
        known = [one for one in wanted if one[0] in reference.queues]
        world.submit(*(job_of(f"w{wave}-{n}", *one, world.seconds) for n, one in enumerate(known)))
        for _ in range(5):
            world.tick(40)
            for name in reference.queues:
                held = [job for job in world.snapshot.jobs if holds_gpus(job)]
                assert reference.total(name, use_of(held)) <= reference.most(name)
    held = [job for job in world.snapshot.jobs if holds_gpus(job)]
    waiting = [job for job in world.snapshot.jobs if job.status.phase is JobPhase.PENDING]
    use = use_of(held)
    for job in waiting:
        name, wanted_gpus = job.spec.queue, job.spec.gpus
        if "is held for an earlier job" in world.why(job.metadata.name):
            # That one lacks nothing but what jobs of its own queue hold.
            continue
        assert not reference.is_allowed(name, wanted_gpus, use)
        promised = reference.is_promised_any(name)
        assert not (promised and reference.is_entitled(name, wanted_gpus, use)), job.metadata.name
    assert sum(job.status.counters.preemptions for job in held + waiting) <= len(first)
