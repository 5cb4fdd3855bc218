"""The number of pods that a node may have: counted through cycles, departures and preemption."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from tests.harness.builders import make_gpu, make_job, make_node, make_pod, running, statuses
from tests.harness.world import World

GPUS = [make_gpu(f"GPU-{n}", index=n) for n in range(3)]


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


def world_of(*jobs: GPUJob, pods_free: int) -> World:
    node = make_node(pods_allocatable=29, pods_free=pods_free)
    return World(*jobs, gpus=GPUS, nodes=[node])


@pytest.mark.parametrize(("pods_free", "placed"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_one_cycle_places_as_many_workers_as_the_node_takes(pods_free: int, placed: int) -> None:
    world = world_of(*(whole(f"j{n}", created=n) for n in range(3)), pods_free=pods_free)
    world.step()
    starting = [job for job in world.snapshot.jobs if job.status.phase is JobPhase.STARTING]
    assert len(starting) == placed


def test_pods_that_are_not_bound_yet_count_in_the_next_cycle() -> None:
    world = world_of(whole("first"), pods_free=1)
    world.step()
    world.submit(whole("second", created=1))
    world.step()
    assert world.phase("second") is JobPhase.PENDING
    assert "take no more pods" in world.why("second")


def test_the_pod_of_a_victim_leaves_room_for_that_of_the_job() -> None:
    jobs = [whole(f"low{n}", created=n) for n in range(3)]
    low = [running(job, ("n0", (f"GPU-{n}",)), at=float(n)) for n, job in enumerate(jobs)]
    world = world_of(*low, pods_free=0)
    world.snapshot = replace(world.snapshot, pods=tuple(make_pod(job) for job in low))
    world.submit(whole("high", priority=5, created=9))
    plan = world.step()
    stopped = [name for name, status in statuses(plan.items).items() if status.stop is not None]
    assert len(stopped) == 1
