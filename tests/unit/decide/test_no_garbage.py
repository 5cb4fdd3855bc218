"""A cycle's objects go with it: garbage that only a collection finds would hold the snapshots of
many cycles in memory."""

import gc
from collections.abc import Iterator

import pytest

from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner
from tests.harness.builders import (
    after,
    make_gpu,
    make_job,
    make_pods,
    make_queue,
    make_snapshot,
    running,
)

GPUS = [make_gpu("GPU-0"), make_gpu("GPU-1")]
HOLDER = running(make_job("holder", priority=-10), ("n0", ("GPU-0",)))
WORLDS = {
    "placed": make_snapshot(make_job(), gpus=GPUS),
    "preempts": make_snapshot(
        HOLDER, make_job("next", priority=10), pods=make_pods(HOLDER), gpus=GPUS[:1]
    ),
    "waits-for-gpus": make_snapshot(
        HOLDER, make_job("next", priority=-10), pods=make_pods(HOLDER), gpus=GPUS[:1]
    ),
    "waits-for-quota": make_snapshot(
        make_job(queue="lab"), gpus=GPUS, queues=(make_queue("lab", gpus=0),)
    ),
    "suspended": make_snapshot(make_job(suspend=True), gpus=GPUS),
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Garbage is not looked for meanwhile, and what is found then is kept to be looked at."""
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def garbage_of_ours() -> list[str]:
    """The types of the project's objects in the garbage."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    kinds = {type(one) for one in gc.garbage}
    return sorted(one.__qualname__ for one in kinds if one.__module__.startswith("gpujob_"))


@pytest.mark.parametrize("snapshot", WORLDS.values(), ids=WORLDS)
def test_a_cycle_leaves_no_garbage(snapshot: Snapshot, uncollected: None) -> None:
    planner = Planner()
    for seconds in (0.0, 1.0):
        assert planner(snapshot, after(seconds)).items
    assert garbage_of_ours() == []


def test_garbage_would_be_seen(uncollected: None) -> None:
    snapshot = make_snapshot()
    object.__setattr__(snapshot, "jobs", snapshot)
    del snapshot
    assert "Snapshot" in garbage_of_ours()
