"""The memory of a parked replica is reserved for other jobs, and again for it before it wakes."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, ReservationSource, SharingMode
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import GIB
from gpujob_api.serving import ServingReport
from gpujob_api.settings import Task
from gpujob_operator.decide.measurement.parking import SETTLED_SECONDS
from gpujob_operator.decide.measurement.reservation import with_margin
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import GPUUsage, Parking
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    CARD_BYTES,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_report,
    measured,
    received,
    reserve,
    running,
    with_status,
)
from tests.harness.world import World

CONFIGURATION = Configuration()
PEAK_BYTES = 10 * GIB
FULL_BYTES = with_margin(PEAK_BYTES, CONFIGURATION)
KEPT_BYTES = with_margin(GIB, CONFIGURATION)


def replica(source: ReservationSource = ReservationSource.MEASURED) -> GPUJob:
    optimize = Optimize(task=Task.SERVING)
    job = make_job("digits-0", claim=None, optimize=optimize, max_slowdown_percent=100)
    job = running(job, held=reserve(FULL_BYTES, source, utilization_percent=30.0))
    return with_status(job, measurement=measured(PEAK_BYTES, utilization_percent=30.0))


def neighbour() -> GPUJob:
    """A job that needs more than the rest of the GPU beside the replica."""
    hint = CARD_BYTES - FULL_BYTES + GIB
    return make_job(
        "train", memory_bytes=hint, sharing=SharingMode.SHARED, max_slowdown_percent=100
    )


class Scene:
    def __init__(self, job: GPUJob | None = None) -> None:
        self.replica = job or replica()
        node = make_gpu_node("n0", make_gpu("GPU-0"))
        self.world = World(self.replica, pods=make_pods(self.replica), gpu_nodes=[node])
        self.events: list[str] = []

    def report(self, parked_seconds: float | None, memory_bytes: int, attempt: int = 1) -> None:
        serving = ServingReport(ready=True, can_park=True, parked_seconds=parked_seconds)
        report = make_report(attempt, serving=serving)
        uid = self.replica.metadata.uid
        self.world.snapshot = replace(
            self.world.snapshot,
            reports=(received(self.replica, report, self.world.seconds),),
            usage={(uid, 1): GPUUsage(PEAK_BYTES, 30.0, 10, memory_bytes=memory_bytes)},
        )

    def ask(self, parks: bool | None) -> None:
        uid = self.replica.metadata.uid
        asked = () if parks is None else (Parking(uid, parks),)
        self.world.snapshot = replace(self.world.snapshot, parking=asked)

    def tick(self) -> None:
        self.world.seconds += CONFIGURATION.progress_write_seconds + 1
        for item in plan(self.world.snapshot, self.world.now).items:
            if isinstance(item, WriteStatus):
                self.events += [event.reason for event in item.events]
        self.world.tick(0)

    def park(self) -> None:
        self.ask(True)
        self.report(SETTLED_SECONDS, GIB)
        self.tick()

    @property
    def held(self) -> tuple[ReservationSource, int]:
        held = self.world.status("digits-0").reservation
        assert held is not None
        return held.source, held.memory_bytes


def test_it_keeps_what_it_uses_and_another_job_gets_the_rest() -> None:
    scene = Scene()
    scene.world.submit(neighbour())
    scene.tick()
    assert scene.world.gpus("train") == set()
    scene.park()
    assert scene.held == (ReservationSource.PARKED, KEPT_BYTES)
    assert scene.events.count("Parked") == 1
    scene.tick()
    assert scene.world.gpus("train") == {"GPU-0"}
    scene.tick()
    assert scene.events.count("Parked") == 1


@pytest.mark.parametrize(
    ("parks", "parked_seconds", "memory_bytes", "source"),
    [
        (True, None, GIB, ReservationSource.MEASURED),
        (True, SETTLED_SECONDS - 1, GIB, ReservationSource.MEASURED),
        (None, 60.0, GIB, ReservationSource.MEASURED),
        (False, 60.0, GIB, ReservationSource.MEASURED),
        (True, 60.0, PEAK_BYTES, ReservationSource.MEASURED),
        (True, 60.0, GIB, ReservationSource.HINT),
        (True, 60.0, GIB, ReservationSource.WHOLE_GPU),
    ],
    ids=["awake", "too early", "not asked", "wakes", "not freed", "capped", "whole GPU"],
)
def test_when_nothing_is_given_back(
    parks: bool | None, parked_seconds: float | None, memory_bytes: int, source: ReservationSource
) -> None:
    scene = Scene(replica(source))
    scene.ask(parks)
    scene.report(parked_seconds, memory_bytes)
    scene.tick()
    assert scene.held[0] is not ReservationSource.PARKED
    assert scene.held[1] >= FULL_BYTES
    assert "Parked" not in scene.events


def test_a_report_of_an_earlier_attempt_gives_nothing_back() -> None:
    scene = Scene()
    scene.ask(True)
    scene.report(60.0, GIB, attempt=0)
    scene.tick()
    assert scene.held == (ReservationSource.MEASURED, FULL_BYTES)


def test_before_it_wakes_all_of_its_memory_is_reserved_again() -> None:
    scene = Scene()
    scene.park()
    scene.ask(False)
    scene.tick()
    assert scene.held == (ReservationSource.MEASURED, FULL_BYTES)
    held = scene.world.status("digits-0").reservation
    assert held is not None
    assert held.utilization_percent == 30.0
    assert scene.events.count("Woken") == 1


def test_it_waits_for_memory_that_another_job_has_and_gets_it_at_once_after() -> None:
    scene = Scene()
    planner = Planner()
    scene.park()
    scene.world.submit(neighbour())
    scene.tick()
    assert scene.world.gpus("train") == {"GPU-0"}
    scene.ask(False)
    scene.tick()
    planner(scene.world.snapshot, scene.world.now)
    assert scene.held == (ReservationSource.PARKED, KEPT_BYTES)
    scene.world.end("train")
    scene.tick()
    assert scene.held == (ReservationSource.MEASURED, FULL_BYTES)


def test_without_a_request_it_stays_parked() -> None:
    """The operator has just started, or the gate does not report."""
    scene = Scene()
    scene.park()
    scene.ask(None)
    scene.tick()
    assert scene.held == (ReservationSource.PARKED, KEPT_BYTES)


def test_one_that_is_awake_already_reserves_what_is_free() -> None:
    """Nobody told it so, but what it uses is used."""
    scene = Scene()
    scene.park()
    scene.ask(None)
    scene.report(None, PEAK_BYTES)
    scene.tick()
    assert scene.held == (ReservationSource.MEASURED, FULL_BYTES)


def test_a_planner_that_kept_its_cache_decides_the_same() -> None:
    scene, planner = Scene(), Planner()
    scene.tick()
    steps = [(None, None), (True, 3.0), (True, 30.0), (None, 40.0), (False, 50.0), (None, None)]
    for parks, parked_seconds in steps:
        scene.ask(parks)
        scene.report(parked_seconds, PEAK_BYTES if parked_seconds is None else GIB)
        scene.world.seconds += CONFIGURATION.progress_write_seconds + 1
        fresh, kept = (one(scene.world.snapshot, scene.world.now) for one in (plan, planner))
        assert kept.items == fresh.items
        scene.world.tick(0)
        planner(scene.world.snapshot, scene.world.now)
    assert scene.held == (ReservationSource.MEASURED, FULL_BYTES)
