"""Nobody is stopped again and again for a job whose pods do not start, or fail at once."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.preemption.use import PAUSE_SECONDS
from tests.harness.builders import (
    make_gpu,
    make_gpu_node,
    make_job,
    make_queue,
    make_report,
    received,
)
from tests.harness.world import World

NO_AFFINITY = "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
DAY = 86_400


class PickyWorld(World):
    """Pods of these jobs never run, and this is what is said of them."""

    picky = frozenset({"greedy"})
    # None: kube-scheduler refuses them.
    kubelet_reason: str | None = None

    def _moved(self, pod: PodView) -> PodView:
        job = pod.name.rsplit("-", 2)[0]
        if job not in self.picky or pod.phase is not PodPhase.PENDING:
            return super()._moved(pod)
        if pod.deletion_at is not None:
            return replace(pod, phase=PodPhase.FAILED)
        if self.kubelet_reason is not None:
            reason = self.kubelet_reason
            return replace(pod, phase=PodPhase.FAILED, reason=reason, message="not on this node")
        return replace(
            pod, node=None, reason="Unschedulable", message=NO_AFFINITY,
            scheduled_since=pod.scheduled_since or self.now,
        )  # fmt: skip

    def live(self, seconds: float, step: float = 60.0) -> None:
        until = self.seconds + seconds
        while self.seconds < until:
            self.tick(step)

    @property
    def preempted(self) -> int:
        return sum(job.status.counters.preemptions for job in self.snapshot.jobs)


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


def world_of(count: int = 4, **snapshot: Any) -> PickyWorld:
    """Jobs of low priority on all GPUs, one on each node."""
    readings = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(count)]
    jobs = [whole(f"low{n}") for n in range(count)]
    world = PickyWorld(*jobs, gpu_nodes=readings, **snapshot)
    world.tick()
    assert len(world.running()) == count
    return world


@pytest.mark.parametrize("reason", [None, "UnexpectedAdmissionError", "OutOfcpu"])
def test_for_pods_that_are_refused_jobs_are_stopped_once(reason: str | None) -> None:
    world = world_of()
    world.kubelet_reason = reason
    world.submit(whole("greedy", priority=10, created=1))
    world.live(PAUSE_SECONDS - 60)
    assert world.preempted == 1
    assert world.status("greedy").attempt >= 1
    why = world.why("greedy")
    assert why.startswith("InsufficientCapacity")
    assert "no job is stopped for it in the next" in why
    assert "unless its spec is edited" in why
    assert (NO_AFFINITY if reason is None else reason) in why


def test_in_days_it_is_a_handful() -> None:
    """The pause doubles up to a day; nobody loses its right to be preempted for somebody else."""
    world = world_of()
    world.submit(whole("greedy", priority=10, created=1))
    world.live(3 * DAY, step=3600.0)
    # After 0, 1, 3, 7, 15, 31 and 55 hours.
    assert 5 <= world.preempted <= 7
    assert all(job.status.counters.preemptions <= 3 for job in world.snapshot.jobs)


def test_it_still_starts_on_what_is_free_and_may_preempt_again_once_it_ran() -> None:
    world = world_of()
    world.submit(whole("greedy", priority=10, created=1))
    world.live(300)
    world.picky = frozenset()
    world.end(min(world.running()))
    world.live(700)
    assert "greedy" in world.running()
    status = world.status("greedy")
    assert status.others_stopped is None
    assert world.preempted == 1


def test_for_a_job_that_fails_at_its_start_jobs_are_stopped_twice() -> None:
    """The first failure may be chance. Each of its other retries would cost somebody an attempt."""
    world = world_of()
    world.submit(whole("greedy", priority=10, created=1, retries=9))
    world.picky = frozenset()
    for _ in range(40):
        world.tick(30)
        if world.phase("greedy") is JobPhase.RUNNING:
            world.end("greedy", 1)
    assert world.preempted == 2
    assert "it did not start, or failed at its start, after others were stopped" in world.why(
        "greedy"
    )
    world.end(min(world.running()))
    world.live(600, step=30.0)
    assert "greedy" in world.running(), "it still starts on what is free"
    assert world.status("greedy").others_stopped is None, "and has run for a while"


def test_a_job_that_made_a_step_used_what_it_got() -> None:
    world = world_of()
    world.submit(whole("greedy", priority=10, created=1))
    world.picky = frozenset()
    world.tick(1)
    assert world.phase("greedy") is JobPhase.RUNNING
    assert world.status("greedy").others_stopped is not None
    report = received(world.job("greedy"), make_report(step=1), at=world.seconds)
    world.snapshot = replace(world.snapshot, reports=(report,))
    world.tick(1)
    assert world.status("greedy").others_stopped is None


def test_an_edit_of_its_spec_lets_it_try_again_at_once() -> None:
    world = world_of()
    world.submit(whole("greedy", priority=10, created=1))
    world.live(600)
    assert world.preempted == 1
    world.picky = frozenset()
    edited = (
        replace(job, metadata=replace(job.metadata, generation=2))
        if job.metadata.name == "greedy"
        else job
        for job in world.snapshot.jobs
    )
    world.snapshot = replace(world.snapshot, jobs=tuple(edited))
    world.tick()
    assert "greedy" in world.running()
    assert world.preempted == 2


def test_a_job_that_never_preempted_may_although_one_node_refused_it() -> None:
    """A node that is broken and free keeps no job of high priority from the others."""

    class OneBadNode(PickyWorld):
        def _moved(self, pod: PodView) -> PodView:
            place = next(
                (w.node for job in self.snapshot.jobs if job.metadata.uid == pod.job_uid
                 and job.status.placement for w in job.status.placement.workers), None,
            )  # fmt: skip
            self.picky = frozenset({"greedy"} if place == "n1" else ())
            return super()._moved(pod)

    readings = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(2)]
    world = OneBadNode(whole("low"), gpu_nodes=readings)
    world.tick()
    assert world.gpus("low") == {"GPU-0"}
    world.submit(whole("greedy", priority=10, created=1))
    world.live(60, step=10.0)
    assert world.gpus("greedy") == {"GPU-0"}
    assert world.phase("greedy") is JobPhase.RUNNING


def test_reclaiming_by_quota_is_bounded_as_well() -> None:
    queues = [make_queue("a", gpus=0, borrow=4), make_queue("b", gpus=2)]
    readings = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(2)]
    world = PickyWorld(
        whole("a0", queue="a"), whole("a1", queue="a"), gpu_nodes=readings, queues=queues
    )
    world.tick()
    world.submit(whole("greedy", queue="b", created=1))
    world.live(PAUSE_SECONDS - 60)
    assert world.preempted == 1
    assert "did not start after others were stopped for it" in world.why("greedy")
