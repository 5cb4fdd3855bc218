"""What the operator decides for one job, or for the jobs of one queue, in small worlds."""

from dataclasses import replace
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from gpujob_operator.decide.measurement.profile import new_entries, with_entries
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_queue,
    make_report,
    make_snapshot,
    measured,
    received,
    reserve,
    running,
    statuses,
)
from tests.harness.world import World

Outcome = dict[str, Any]


def outcome(world: World) -> Outcome:
    """The status of every job: all that a decision leaves behind."""
    return {job.metadata.name: encode(job.status) for job in world.snapshot.jobs}


def placed(job: GPUJob) -> Outcome:
    """Where the job goes among two GPUs, or why it waits; the queue `closed` has no quota."""
    node = make_gpu_node("n0", make_gpu("GPU-0"), make_gpu("GPU-1", index=1))
    queues = [make_queue("default"), make_queue("closed", gpus=0)]
    world = World(job, gpu_nodes=[node], queues=queues)
    world.tick()
    return outcome(world)


def beside_another(job: GPUJob) -> Outcome:
    """Which of two jobs gets the only GPU; the other one came first."""
    earlier = make_job("earlier", created=-1, sharing=SharingMode.EXCLUSIVE)
    world = World(earlier, job)
    world.tick()
    return outcome(world)


def beside_a_busy_one(job: GPUJob) -> Outcome:
    """Whether the job, measured before, joins a job that keeps its GPU busy."""
    busy = running(
        make_job("busy", max_slowdown_percent=100),
        held=reserve(4 * GIB, utilization_percent=70.0),
        measurement=measured(4 * GIB, utilization_percent=70.0),
    )
    known = replace(job.status, measurement=measured(4 * GIB, utilization_percent=70.0))
    snapshot = make_snapshot(busy, replace(job, status=known), pods=[make_pod(busy)])
    return {
        name: encode(status) for name, status in statuses(plan(snapshot, after(1)).items).items()
    }


def on_a_spot_node(job: GPUJob) -> Outcome:
    world = World(job, nodes=[make_node("n0", spot=True)])
    world.tick()
    return outcome(world)


def beside_a_profile(job: GPUJob) -> Outcome:
    """What the job starts with where another program of the workload `resnet` was measured."""
    other = running(
        make_job("other", workload="resnet"), measurement=measured(4 * GIB), held=reserve(5 * GIB)
    )
    entries = new_entries(other.status, None, after(0), alone=True)
    assert entries is not None
    world = World(job, profiles=(with_entries(other, None, entries),))
    world.tick()
    return outcome(world)


def long_finished(job: GPUJob) -> Outcome:
    """What is left of the job an hour after it has succeeded."""
    world = World(job)
    world.tick()
    world.end("job")
    world.tick()
    world.tick(3600.0)
    return outcome(world)


def failed(job: GPUJob) -> Outcome:
    """What becomes of the job when its worker fails after its tenth step."""
    started = running(job, measurement=measured(GIB, step=10))
    report = make_report(failure=FailureClass.UNKNOWN)
    snapshot = make_snapshot(
        started, pods=[make_pod(started, exit_code=1)], reports=[received(started, report)]
    )
    return _decided(snapshot)


def silent(job: GPUJob) -> Outcome:
    """What becomes of the job without progress in a quarter of an hour."""
    started = running(job)
    snapshot = make_snapshot(
        started,
        pods=[make_pod(started)],
        gpu_nodes=[make_gpu_node(at=900)],
        reports=[received(started, make_report(step=5))],
        listening_since=after(0),
    )
    decided = plan(snapshot, after(900))
    return {name: encode(status) for name, status in statuses(decided.items).items()}


def _decided(snapshot: Any) -> Outcome:
    found = statuses(plan(snapshot, after(1)).items)
    return {name: encode(status) for name, status in found.items()}


# -- queues


def admitted(queue: GPUQueue) -> Outcome:
    """Which of the queue's jobs start on four GPUs: two namespaces, two priorities."""
    jobs = [
        make_job("low", sharing=SharingMode.EXCLUSIVE, priority=-5),
        make_job("high", sharing=SharingMode.EXCLUSIVE, priority=5),
        make_job("large", memory_bytes=20 * GIB, sharing=SharingMode.SHARED),
    ]
    others = make_job("theirs", sharing=SharingMode.EXCLUSIVE)
    others = replace(others, metadata=replace(others.metadata, namespace="other"))
    return _world(queue, *jobs, others)


def beside_another_queue(queue: GPUQueue) -> Outcome:
    """Whose jobs get the two GPUs: the other queue's job came first."""
    theirs = [_whole(f"theirs-{n}", created=-1 + n / 10, queue="rival") for n in range(2)]
    ours = [_whole(f"ours-{n}", created=n) for n in range(2)]
    return _world(queue, *theirs, *ours, queues=[make_queue("rival")], gpus=3)


def under_a_parent(queue: GPUQueue) -> Outcome:
    """What the queue gets of its parent's GPUs."""
    jobs = [_whole(f"ours-{n}", created=n) for n in range(3)]
    return _world(queue, *jobs, queues=[make_queue("parent", gpus=2)])


def on_a_gpu_of_another_queue(queue: GPUQueue) -> Outcome:
    """Whether a job of the queue joins another queue's and namespace's job on the only GPU."""
    small: dict[str, Any] = {
        "memory_bytes": 4 * GIB,
        "sharing": SharingMode.SHARED,
        "max_slowdown_percent": 100,
    }
    theirs = make_job("theirs", created=-1, queue="rival", **small)
    theirs = replace(theirs, metadata=replace(theirs.metadata, namespace="other"))
    rival = make_queue("rival", sharing_group="lab")
    return _world(queue, theirs, make_job("ours", **small), queues=[rival], gpus=1)


def _whole(name: str, created: float, queue: str = "default") -> GPUJob:
    return make_job(name, created=created, queue=queue, sharing=SharingMode.EXCLUSIVE)


def _world(
    queue: GPUQueue, *jobs: GPUJob, queues: list[GPUQueue] | None = None, gpus: int = 4
) -> Outcome:
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    world = World(*jobs, gpu_nodes=[node], queues=[queue, *(queues or ())])
    world.tick()
    return outcome(world)
