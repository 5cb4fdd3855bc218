"""Properties of what-if runs and accounts: an answer for every picture, by the rules."""

from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_operator.decide.explain.placement_explanation import explain_placement
from gpujob_operator.decide.explain.words import rows
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner, plan
from gpujob_operator.decide.simulation.run import Limits, simulate
from tests.property.plan_snapshots import NOW, fresh_clusters, odd_snapshots

few = settings(max_examples=25)
LIMITS = Limits(horizon_seconds=3600, cycles=80)


def held_bytes(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """By node and GPU UUID, what jobs with a placement hold of it."""
    found: dict[tuple[str, str], int] = {}
    for job in snapshot.jobs:
        placement, reservation = job.status.placement, job.status.reservation
        if placement is None or reservation is None or job.finished:
            continue
        for worker in placement.workers:
            for uuid in worker.gpus:
                place = worker.node, uuid
                found[place] = found.get(place, 0) + reservation.memory_bytes
    return found


@few
@given(odd_snapshots() | fresh_clusters())
def test_every_picture_has_a_future_and_it_is_bounded(snapshot: Snapshot) -> None:
    story = simulate(snapshot, NOW, LIMITS)
    assert story.cycles <= LIMITS.cycles
    assert 0 <= story.seconds <= LIMITS.horizon_seconds
    assert story.ended in ("no pending jobs", "horizon", "cycles")
    for job in story.jobs.values():
        assert all(0 <= one.seconds <= story.seconds for one in job.placed + job.stopped)
        assert all(one.lost_gpu_seconds >= 0 for one in job.stopped)


@few
@given(fresh_clusters())
def test_no_gpu_is_ever_given_away_twice(snapshot: Snapshot) -> None:
    """I1 and I3 in every picture of the run, as time passes and jobs come and go."""
    room = {
        (node.metadata.name, gpu.uuid): gpu.memory_total_bytes - gpu.memory_reserved_bytes
        for node in snapshot.gpu_nodes
        for gpu in node.status.gpus
    }
    planner = Planner()

    def watched(seen: Snapshot, now: datetime) -> Plan:
        assert all(held <= room[place] for place, held in held_bytes(seen).items())
        live = [(pod.job_uid, pod.rank) for pod in seen.pods if not pod.finished]
        assert len(live) == len(set(live))
        assert all(view.cpu_milli_free <= view.cpu_milli_allocatable for view in seen.nodes)
        return planner(seen, now)

    simulate(snapshot, NOW, LIMITS, watched)


@few
@given(fresh_clusters())
def test_what_starts_at_once_is_what_the_cycle_places(snapshot: Snapshot) -> None:
    story = simulate(snapshot, NOW, LIMITS)
    now = {
        item.job.metadata.uid: item.status.placement
        for item in plan(snapshot, NOW).items
        if isinstance(item, WriteStatus) and item.status.placement is not None
    }
    at_once = {
        uid: job.placed[0].placement
        for uid, job in story.jobs.items()
        if job.placed and job.placed[0].seconds == 0
    }
    assert at_once == now


@few
@given(odd_snapshots() | fresh_clusters(), st.integers(0, 100))
def test_every_job_has_an_account_or_a_reason_for_none(snapshot: Snapshot, number: int) -> None:
    if not snapshot.jobs:
        return
    job = snapshot.jobs[number % len(snapshot.jobs)]
    try:
        found = explain_placement(snapshot, NOW, job.metadata.uid)
    except FieldError:
        assert job.finished
        return
    assert all(label and text for label, text in rows(found))
    # A node is either a place or lacks something.
    places = {worker.node for one in found.best for worker in one.placement.workers}
    assert places.isdisjoint(found.lacks)


@few
@given(fresh_clusters())
def test_the_cycles_choice_is_the_first_where_nothing_is_kept_for_others(
    snapshot: Snapshot,
) -> None:
    """Whoever was placed before it in the same cycle is counted in."""
    decided = [item for item in plan(snapshot, NOW).items if isinstance(item, WriteStatus)]
    if any(item.status.placement is None for item in decided):
        return
    for item in decided:
        found = explain_placement(snapshot, NOW, item.job.metadata.uid)
        assert found.decided_here
        assert found.rank == 0
        assert found.best[0].placement == item.status.placement
