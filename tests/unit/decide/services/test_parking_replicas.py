"""Replicas that park without requests, and wake at the next one."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import ReservationSource
from gpujob_api.gpuservice import Replicas
from gpujob_api.quantities import GIB
from gpujob_api.serving import ServingReport
from tests.harness.builders import make_template, with_status
from tests.harness.parking import (
    FULL_BYTES,
    GPU_BYTES,
    PARK_AFTER,
    PARKED_BYTES,
    RESERVED,
    STOP_AFTER,
    ParkingWorld,
    parking_world,
)

NEW = make_template(command=("serve", "--version=2"))


def held_source(world: ParkingWorld) -> ReservationSource:
    [live] = world.replicas()
    held = live.job.status.reservation
    assert held is not None
    return held.source


def parked() -> ParkingWorld:
    world = parking_world()
    world.run(PARK_AFTER + 20)
    assert len(world.parked) == 1
    assert held_source(world) is ReservationSource.PARKED
    return world


def test_a_replica_parks_after_the_time_without_requests_and_gives_its_memory_back() -> None:
    world = parking_world()
    world.run(PARK_AFTER)
    assert world.parked == [], "the time counts from Ready"
    world.run(8)
    assert len(world.parked) == 1
    assert held_source(world) is ReservationSource.MEASURED, "until the readings show it"
    world.run(12)
    assert world.free_bytes() > GPU_BYTES - FULL_BYTES
    status, reason, message = world.condition("Ready")
    assert (status, reason) == ("False", "Parked")
    assert f"for {PARK_AFTER} s" in message
    assert world.status.summary.reason == "parked; a request wakes it"
    [shown] = world.status.replicas
    assert (shown.ready, shown.parked, bool(shown.address)) == (False, True, True)
    assert world.condition("Progressing")[1] == "Complete"


def test_a_request_wakes_it_and_it_parks_again() -> None:
    world = parked()
    world.request()
    world.run(4)
    assert (world.answered, world.parked, world.misrouted) == (1, [], 0)
    assert held_source(world) is ReservationSource.MEASURED
    assert len(world.created) == 1
    assert world.condition("Ready")[:2] == ("True", "ReplicasReady")
    world.run(PARK_AFTER + 20)
    assert len(world.parked) == 1


def test_it_stops_after_the_longer_time() -> None:
    world = parked()
    world.run(STOP_AFTER)
    assert world.replicas() == []
    assert world.condition("Ready")[1] == "ScaledToZero"
    world.request()
    world.run(8)
    assert world.answered == 1


def test_requests_in_time_keep_it_awake() -> None:
    world = parking_world()
    for _ in range(6):
        world.run(PARK_AFTER - 4)
        world.request()
    world.run(2)
    assert world.answered == 6
    assert [one.parks for one in world.workers.values()] == [0]


def test_without_room_on_its_gpu_another_replica_starts_elsewhere() -> None:
    world = parked()
    world.take(world.free_bytes())
    [first] = world.replicas()
    kept = world.others_bytes
    world.request()
    for _ in range(12):
        world.tick()
        if len(world.created) == 2:
            # The new one has a GPU of its own.
            world.others_bytes = 0
    assert (world.answered, world.expired) == (1, 0)
    assert first.job.metadata.name not in {one.job.metadata.name for one in world.replicas()}
    assert kept > GPU_BYTES - FULL_BYTES
    assert len(world.created) == 2


def test_a_replica_that_does_not_wake_is_replaced() -> None:
    world = parked()
    [first] = world.replicas()
    world.loses_replies = True
    world.request()
    for second in range(70):
        world.tick()
        if second % 20 == 0:
            world.request()
        if len(world.created) == 2:
            break
    assert len(world.created) == 2
    assert first.gone_at is not None


def test_a_parked_process_that_hangs_is_replaced() -> None:
    """Its readiness probe fails, and it does not report any more."""
    world = parked()
    [hung] = world.replicas()
    hung.report = world.serving(hung)
    hung.ready, hung.ready_at = False, None
    hung.job = with_status(hung.job, reservation=RESERVED)
    world.request()
    world.run(58)
    assert hung.gone_at is None
    [shown] = world.status.replicas
    assert (shown.ready, shown.parked) == (False, True), "for a new leader"
    world.run(4)
    assert hung.gone_at is not None
    world.request()
    world.run(8)
    assert world.answered == 1


@pytest.mark.parametrize("missing", ["report", "gate", "ability"])
def test_what_keeps_a_replica_awake(missing: str) -> None:
    world = parking_world()
    world.can_park = missing != "ability"
    for _ in range(3 * PARK_AFTER):
        world.tick()
        for live in world.gates.values():
            live.is_silent = missing == "report"
        if missing == "gate":
            world.gates.clear()
    assert world.parked == []
    assert world.condition("Ready")[0] == "True"
    shown = "its process cannot" in world.condition("Ready")[2]
    assert shown is (missing == "ability"), "what the user can change is in the condition"


def test_a_gate_that_still_has_addresses_keeps_a_replica_from_parking() -> None:
    """Its last reply was lost, so a request could still reach the replica."""
    world = parking_world()
    world.run(PARK_AFTER)

    def stale(world: ParkingWorld = world) -> None:
        [live] = world.replicas()
        world.routes = (live.job.metadata.name,)

    for _ in range(20):
        stale()
        world.tick()
    assert world.parked == []
    world.run(4)
    assert len(world.parked) == 1


def test_a_client_that_leaves_does_not_end_the_search_for_memory() -> None:
    world = parked()
    world.take(world.free_bytes())
    for second in range(12):
        if second % 3 == 0:
            world.request()
        if second % 3 == 2:
            world.held.clear()
        if len(world.created) == 1:
            world.tick()
    assert len(world.created) == 2


def two_replicas() -> ParkingWorld:
    world = parking_world()
    world.edit(replicas=replace(world.service.spec.replicas, maximum=2))
    world.report = lambda live: ServingReport(ready=True, busy_percent=90)
    while len(world.ready()) < 2:
        world.tick()
    world.report = world.serving
    return world


def test_a_replica_that_finds_no_memory_is_replaced_though_another_one_answers() -> None:
    world = two_replicas()
    world.run(PARK_AFTER + 20)
    assert len(world.parked) == 2
    world.take(world.free_bytes() - FULL_BYTES + PARKED_BYTES)
    world.request()
    world.run(4)
    assert (world.answered, len(world.parked)) == (1, 1)
    world.run(4)
    assert len(world.created) == 3


def test_requests_at_a_replica_that_cannot_park_wake_the_other_one() -> None:
    world = two_replicas()
    cannot = world.ready()[1].job.metadata.name
    world.report = lambda live: replace(
        world.serving(live) or ServingReport(), can_park=live.job.metadata.name != cannot
    )
    world.run(PARK_AFTER)
    assert world.parked == []
    world.worker(world.ready()[0]).parked_at = world.now
    world.run(4)
    assert len(world.parked) == 1, "without requests it stays"
    world.request()
    world.run(4)
    assert (world.answered, world.parked, world.misrouted) == (1, [], 0)
    world.run(2 * PARK_AFTER)
    assert world.parked == []
    assert len(world.created) == 2


def test_an_operator_that_starts_changes_nothing_until_the_gate_reports() -> None:
    world = parked()
    for live in world.gates.values():
        live.is_silent = True
    world.restart_operator()
    world.run(15)
    assert len(world.parked) == 1
    assert held_source(world) is ReservationSource.PARKED
    for live in world.gates.values():
        live.is_silent = False
    world.request()
    world.run(4)
    assert world.answered == 1


def test_an_operator_that_starts_sends_no_request_to_a_parked_replica_that_has_not_reported() -> (
    None
):
    world = parked()
    world.restart_operator()
    world.hears = False
    world.run(3)
    world.request()
    world.run(3)
    assert (world.misrouted, world.answered) == (0, 0)
    assert world.condition("Ready")[1] == "Parked"
    world.hears = True
    world.run(4)
    assert (world.misrouted, world.answered) == (0, 1)


def test_an_edit_keeps_a_parked_replica_until_the_new_one_answers() -> None:
    world = parked()
    [old] = world.replicas()
    world.edit(template=NEW)
    while old.gone_at is None:
        world.tick()
    [new] = [one for one in world.replicas() if one.gone_at is None]
    assert new.ready
    world.run(5)
    assert world.condition("Progressing")[1] == "Complete"


def test_a_revision_that_never_answers_leaves_a_parked_replica_that_wakes() -> None:
    world = parked()
    world.start_seconds = lambda name: None
    world.edit(template=NEW)
    world.run(5)
    world.request()
    world.run(5)
    assert (world.answered, world.misrouted) == (1, 0)


def test_an_edit_replaces_several_parked_replicas() -> None:
    world = two_replicas()
    world.run(PARK_AFTER + 20)
    world.edit(template=NEW)
    world.run(60)
    assert len(world.revisions()) == 1
    assert len(world.replicas()) == len(world.parked) == 2
    assert world.condition("Progressing")[1] == "Complete"


def test_an_edit_that_takes_parking_away_wakes_it() -> None:
    world = parked()
    world.edit(replicas=Replicas(0, 1, stop_after_seconds=STOP_AFTER))
    world.run(4)
    assert world.parked == []
    assert held_source(world) is ReservationSource.MEASURED


def test_a_write_that_takes_long_wakes_nothing_early() -> None:
    world = parked()
    world.write_rounds = 2
    world.request()
    world.run(2)
    assert len(world.parked) == 1
    world.run(4)
    assert world.answered == 1


def silence_or_hear(world: ParkingWorld) -> None:
    for live in world.gates.values():
        live.is_silent = not live.is_silent


EVENTS: dict[str, Callable[[ParkingWorld], None]] = {
    "request": lambda world: world.request(),
    "take": lambda world: world.take(3 * GIB),
    "leave": lambda world: setattr(world, "others_bytes", max(0, world.others_bytes - 3 * GIB)),
    "restart": lambda world: world.restart_operator(),
    "lose": lambda world: setattr(world, "loses_replies", not world.loses_replies),
    "slow": lambda world: setattr(world, "write_rounds", (world.write_rounds + 1) % 4),
    "silence": silence_or_hear,
    "pass": lambda world: None,
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(1, 30)), max_size=40))
def test_memory_is_never_used_twice_and_no_request_meets_a_parked_replica(
    events: list[tuple[str, int]],
) -> None:
    """`tick` compares what is used with what the GPU has."""
    world = parking_world()
    world.run(8)
    for name, seconds in events:
        EVENTS[name](world)
        world.run(seconds)
    assert world.misrouted == 0
    # Once all is well again, a request is answered.
    world.loses_replies, world.write_rounds, world.others_bytes = False, 0, 0
    for live in world.gates.values():
        live.is_silent = False
    world.run(12)
    answered = world.answered
    world.request()
    world.run(15)
    assert world.answered > answered
