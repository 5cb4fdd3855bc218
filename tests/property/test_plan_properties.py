"""What holds for the plan of every snapshot, whatever is in it."""

from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_api.quantities import GIB
from gpujob_operator.decide.capacity.cluster import as_tenant
from gpujob_operator.decide.model.conditions import ACCEPTED, SCHEDULED, find
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.plan import CreatePod, Plan, TryTemplate, WriteStatus
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.decide.model.snapshot import PodPhase, Snapshot
from gpujob_operator.decide.model.workers import is_worker_of
from gpujob_operator.decide.planner import plan
from tests.harness.applied import applied
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    measured,
    with_status,
)
from tests.harness.capacity import build_capacity
from tests.harness.durable import went_back
from tests.property.plan_snapshots import NOW, fresh_clusters, later, odd_snapshots

NOT_STARTED = ("StartTimeout", "PodRejected", "Unschedulable", "CannotStart")
few = settings(max_examples=40)
many = settings(max_examples=80)


def shuffled(snapshot: Snapshot, random: Random) -> Snapshot:
    """The same picture with every tuple in another order."""

    def mixed(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(items, len(items)))

    nodes = tuple(
        replace(node, status=replace(node.status, gpus=mixed(node.status.gpus)))
        for node in snapshot.gpu_nodes
    )
    return replace(
        snapshot,
        jobs=mixed(snapshot.jobs),
        invalid_jobs=mixed(snapshot.invalid_jobs),
        pods=mixed(snapshot.pods),
        nodes=mixed(snapshot.nodes),
        gpu_nodes=mixed(nodes),
        queues=mixed(snapshot.queues),
        profiles=mixed(snapshot.profiles),
        reports=mixed(snapshot.reports),
        usage=dict(mixed(tuple(snapshot.usage.items()))),
    )


@many
@given(odd_snapshots())
def test_plan_never_raises(snapshot: Snapshot) -> None:
    """I10: one odd object must not stop the decisions on all the others."""
    decided = plan(snapshot, NOW)
    assert isinstance(decided, Plan)
    applied(snapshot, decided, NOW)


@few
@given(fresh_clusters() | odd_snapshots(), st.integers(0, 2**32))
def test_the_order_of_what_is_seen_does_not_matter(snapshot: Snapshot, seed: int) -> None:
    """I9, I11: the plan is a function of the set of objects."""
    random = Random(seed)
    decided = plan(snapshot, NOW)
    for _ in range(5):
        assert plan(shuffled(snapshot, random), NOW) == decided


def test_a_hundred_orders_of_one_crowd() -> None:
    """I9, I11: ties between alike jobs are broken by their UIDs alone."""
    jobs = tuple(
        with_status(make_job(f"j{n}"), measurement=measured(5 * GIB))
        if n % 2
        else make_job(f"j{n}")
        for n in range(12)
    )
    names = ("a", "b", "c")
    cluster = Snapshot(
        jobs=jobs,
        nodes=tuple(make_node(name) for name in names),
        gpu_nodes=tuple(
            make_gpu_node(name, make_gpu(f"GPU-{name}0"), make_gpu(f"GPU-{name}1"))
            for name in names
        ),
    )
    decided = plan(cluster, after(20))
    random = Random(1)
    for _ in range(100):
        assert plan(shuffled(cluster, random), after(20)) == decided


@many
@given(fresh_clusters())
def test_no_gpu_is_given_away_twice(snapshot: Snapshot) -> None:
    """I1: reserved + unmanaged processes + driver never exceed a GPU, cycle after cycle."""
    for cycle in range(3):
        decided = plan(snapshot, later(cycle))
        snapshot = applied(snapshot, decided, later(cycle))
        requests = {job.metadata.uid: host_requests(job) for job in snapshot.jobs}
        for node in build_capacity(snapshot, later(cycle), requests).nodes.values():
            for gpu in node.gpus:
                assert gpu.free_bytes >= 0 or not gpu.tenants, gpu
            assert node.cpu_milli_free >= 0


@many
@given(fresh_clusters(nodes_max=1))
def test_who_wants_a_gpu_alone_has_it_alone(snapshot: Snapshot) -> None:
    """I2."""
    after_plan = applied(snapshot, plan(snapshot, NOW), NOW)
    after_plan = applied(after_plan, plan(after_plan, NOW), NOW)
    exclusive = {
        job.metadata.uid for job in snapshot.jobs if job.spec.sharing.mode is SharingMode.EXCLUSIVE
    }
    tenants: dict[str, list[GPUJob]] = defaultdict(list)
    for job in after_plan.jobs:
        placement = job.status.placement
        for worker in placement.workers if placement is not None else ():
            for uuid in worker.gpus:
                tenants[uuid].append(job)
    for jobs in tenants.values():
        alone = [job for job in jobs if _whole(job) or job.metadata.uid in exclusive]
        assert not alone or len(jobs) == 1


def _whole(job: GPUJob) -> bool:
    tenant = as_tenant(job)
    exclusive = job.spec.sharing.mode is SharingMode.EXCLUSIVE
    return exclusive or (tenant is not None and tenant.whole_gpu)


@many
@given(fresh_clusters())
def test_a_gang_gets_all_of_its_gpus_or_none(snapshot: Snapshot) -> None:
    """I1: and each of them on a different GPU of one model where it asked for whole ones."""
    for job in applied(snapshot, plan(snapshot, NOW), NOW).jobs:
        placement = job.status.placement
        if placement is None:
            continue
        assert len(placement.workers) == job.spec.workers
        assert all(len(set(w.gpus)) == job.spec.gpus_per_worker for w in placement.workers)
        # An odd fleet has the same UUID on two nodes.
        gpus = [(worker.node, uuid) for worker in placement.workers for uuid in worker.gpus]
        assert not _whole(job) or len(set(gpus)) == len(gpus)


@few
@given(fresh_clusters() | odd_snapshots())
def test_what_is_written_settles(snapshot: Snapshot) -> None:
    """I8: when nothing happens, cycles that follow one another at once write nothing more."""
    decided = plan(snapshot, NOW)
    for cycle in range(1, 12):
        snapshot = applied(snapshot, decided, later(cycle * 0.01))
        decided = plan(snapshot, later(cycle * 0.01))
    # A trial that is not answered is repeated.
    assert not [item for item in decided.items if not isinstance(item, TryTemplate)]


@few
@given(fresh_clusters())
def test_a_waiting_job_is_told_why_with_numbers(snapshot: Snapshot) -> None:
    """I4: and every job is told that it was accepted, at its generation (I8)."""
    after_plan = applied(snapshot, plan(snapshot, NOW), NOW)
    for job in after_plan.jobs:
        assert job.status.observed_generation == job.metadata.generation
        assert find(job.status, ACCEPTED) is not None
        scheduled = find(job.status, SCHEDULED)
        assert scheduled is not None
        assert scheduled.message
        if scheduled.reason in ("InsufficientCapacity", "OverQuota"):
            assert any(character.isdigit() for character in scheduled.message)


@many
@given(odd_snapshots())
def test_a_finished_job_gets_no_pod_and_stays_as_it_is(snapshot: Snapshot) -> None:
    """I5."""
    finished = {job.metadata.uid: job for job in snapshot.jobs if job.finished}
    for item in plan(snapshot, NOW).items:
        if isinstance(item, CreatePod):
            assert item.job.metadata.uid not in finished
        if isinstance(item, WriteStatus) and item.job.metadata.uid in finished:
            assert item.status.phase is finished[item.job.metadata.uid].status.phase


@many
@given(odd_snapshots())
def test_attempts_only_grow_and_start_when_the_last_one_is_over(snapshot: Snapshot) -> None:
    """I3: also in states that nobody meant."""
    for item in plan(snapshot, NOW).items:
        if not isinstance(item, WriteStatus):
            continue
        assert item.status.attempt >= item.job.status.attempt
        if item.status.attempt > item.job.status.attempt:
            assert not holds_gpus(item.job)
            workers = [pod for pod in snapshot.pods if is_worker_of(pod, item.job)]
            assert all(pod.finished for pod in workers)


@few
@given(fresh_clusters(), st.sampled_from([PodPhase.PENDING, PodPhase.RUNNING, PodPhase.UNKNOWN]))
def test_no_attempt_starts_beside_a_live_pod(snapshot: Snapshot, phase: PodPhase) -> None:
    """I3: not even while its pod is on a node that is not known any more."""
    old = tuple(make_pod(job, phase=phase, attempt=0, node="n7") for job in snapshot.jobs)
    assert not _placed(replace(snapshot, pods=old))


@many
@given(odd_snapshots())
def test_the_durable_step_never_goes_back(snapshot: Snapshot) -> None:
    """I6: whatever reports and termination messages say."""
    for item in plan(snapshot, NOW).items:
        if isinstance(item, WriteStatus) and item.job.spec.checkpoint.volume_claim_name:
            assert not went_back(item.job.status, item.status)


@few
@given(fresh_clusters(jobs_max=1))
def test_more_room_never_keeps_a_job_out(snapshot: Snapshot) -> None:
    """I11: what fits on a cluster fits on it with an empty node more."""
    if not _placed(snapshot):
        return
    more = make_gpu_node("n9", make_gpu("GPU-9"), at=1000.0)
    larger = replace(
        snapshot, nodes=(*snapshot.nodes, make_node("n9")), gpu_nodes=(*snapshot.gpu_nodes, more)
    )
    assert _placed(larger)


def _placed(snapshot: Snapshot) -> set[str]:
    items = plan(snapshot, NOW).items
    return {
        item.job.metadata.uid
        for item in items
        if isinstance(item, WriteStatus) and item.status.phase is JobPhase.STARTING
    }


@few
@given(fresh_clusters())
def test_nobody_overtakes_an_alike_job_that_came_before(snapshot: Snapshot) -> None:
    """I11: of two jobs that ask for the same, the one with the higher priority is first."""
    twins = tuple(
        replace(
            job,
            metadata=replace(job.metadata, name=f"{job.metadata.name}-t", uid=f"t-{n}"),
            spec=replace(job.spec, priority=job.spec.priority + 10),
        )
        for n, job in enumerate(snapshot.jobs)
    )
    placed = _placed(replace(snapshot, jobs=(*snapshot.jobs, *twins)))
    for n, job in enumerate(snapshot.jobs):
        assert job.metadata.uid not in placed or f"t-{n}" in placed


@few
@given(fresh_clusters(), st.sampled_from([31.0, 1e6]))
def test_stale_readings_place_and_stop_nothing(snapshot: Snapshot, age: float) -> None:
    """I14: neither for who waits nor for who runs."""
    assert not [
        item
        for item in plan(snapshot, later(age)).items
        if isinstance(item, WriteStatus) and item.status.placement is not None
    ]
    running = applied(snapshot, plan(snapshot, NOW), NOW)
    old = plan(running, later(age))
    for item in old.items:
        if isinstance(item, WriteStatus):
            assert item.status.attempt == item.job.status.attempt
            stop = item.status.stop
            # That an attempt does not start has nothing to do with readings.
            assert stop is None or stop.reason == "Suspended" or stop.reason in NOT_STARTED
