"""In which order a plan has what it places: it is written in this order, and a burst takes long."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.admission import budget
from gpujob_operator.decide.model.lanes import Lanes, LanesLeft
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.planner import plan
from tests.harness.builders import after, make_gpu, make_job, make_snapshot, running
from tests.harness.world import World

GPUS = [make_gpu(f"GPU-{number}", index=number) for number in range(5)]


def test_what_is_admitted_first_is_placed_first() -> None:
    """I11: by priority and arrival, whatever the UIDs are."""
    jobs = [
        make_job("second", uid="c", created=1.0),
        make_job("third", uid="a", created=2.0),
        make_job("first", uid="d", created=3.0, priority=5),
        make_job("fourth", uid="b", created=4.0),
    ]
    found = plan(make_snapshot(*jobs, gpus=GPUS), after(10))
    assert placed(found) == ["first", "second", "third", "fourth"]


def placed(found: Plan) -> list[str]:
    """The names of the jobs that are placed, in the order in which they are written."""
    return [
        item.job.metadata.name
        for item in found.items
        if isinstance(item, WriteStatus) and item.status.placement is not None
    ]


def test_one_cycle_places_so_many_and_the_next_one_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cycle that takes as long as the Lease is held loses it, and all that it decided."""
    monkeypatch.setattr(budget, "PLACEMENTS_MAX", 2)
    jobs = [make_job(f"job-{number}", created=float(number)) for number in range(5)]
    found = plan(make_snapshot(*jobs, gpus=GPUS), after(10))
    assert placed(found) == ["job-0", "job-1"]
    assert len(found.items) == 2, "nothing is said of jobs that were not looked at"
    assert found.next_seconds == 0.0
    world = World(*jobs, gpus=GPUS)
    world.tick()
    assert world.running() == {job.metadata.name for job in jobs}


def test_one_cycle_says_to_so_many_why_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each cycle would word ten thousand statuses of which few can be written by the next."""
    monkeypatch.setattr(budget, "EXPLAINED_MAX", 2)
    jobs = [make_job(f"job-{number}", created=float(number)) for number in range(6)]
    snapshot = make_snapshot(*jobs, gpus=GPUS[:1])
    items = [item for item in plan(snapshot, after(10)).items if isinstance(item, WriteStatus)]
    waiting = [one.job.metadata.name for one in items if one.status.placement is None]
    assert waiting == ["job-1", "job-2"]
    world = World(*jobs, gpus=GPUS[:1])
    world.tick()
    assert world.running() == {"job-0"}
    assert all(
        world.why(f"job-{number}").startswith("InsufficientCapacity: ") for number in range(1, 6)
    )


@pytest.mark.parametrize(("tells_left", "said"), [(None, 5), (5, 5), (2, 2), (0, 1)])
def test_one_cycle_says_to_no_more_than_can_be_written_why_they_wait(
    tells_left: int | None, said: int
) -> None:
    """What is placed is placed all the same, and the first job of a kind is looked at."""
    jobs = [make_job(f"job-{number}", created=float(number)) for number in range(6)]
    snapshot = replace(make_snapshot(*jobs, gpus=GPUS[:1]), lanes=Lanes(tells_left=tells_left))
    found = plan(snapshot, after(10))
    assert placed(found) == ["job-0"]
    assert len(found.items) == 1 + said


def of_two_namespaces(sick: int, well: int) -> list[GPUJob]:
    """Those of the first one come first."""
    return [
        make_job(f"{namespace}-{number}", namespace=namespace, created=float(order + number))
        for order, namespace, count in ((0, "sick", sick), (100, "well", well))
        for number in range(count)
    ]


def test_of_a_namespace_is_placed_what_can_be_written_and_then_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its writes may hang for ever: what it would hold is free for others meanwhile."""
    monkeypatch.setattr(budget, "UNWRITTEN_MAX", 0)
    jobs = of_two_namespaces(4, 2)
    snapshot = make_snapshot(*jobs, gpus=GPUS)
    assert placed(plan(snapshot, after(10))) == ["sick-0", "sick-1", "sick-2", "sick-3", "well-0"]
    crowded = replace(snapshot, lanes=Lanes((LanesLeft("sick", 1),)))
    assert placed(plan(crowded, after(10))) == ["sick-0", "well-0", "well-1"]
    crowded = replace(snapshot, lanes=Lanes((LanesLeft("sick", 0),)))
    assert placed(plan(crowded, after(10))) == ["well-0", "well-1"]


def test_the_first_jobs_keep_what_they_would_get_although_they_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others were stopped for them, or they have waited longest."""
    monkeypatch.setattr(budget, "UNWRITTEN_MAX", 1)
    snapshot = make_snapshot(*of_two_namespaces(3, 3), gpus=GPUS[:3])
    crowded = replace(snapshot, lanes=Lanes((LanesLeft("sick", 0),)))
    assert placed(plan(crowded, after(10))) == ["sick-0", "well-0", "well-1"]


def test_what_cannot_be_written_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I15: of the first, every write is refused."""
    monkeypatch.setattr(budget, "PLACEMENTS_MAX", 2)
    jobs = of_two_namespaces(2, 2)
    snapshot = make_snapshot(*jobs, gpus=GPUS)
    assert placed(plan(snapshot, after(10))) == ["sick-0", "sick-1"]
    refused = replace(snapshot, backing_off=tuple(job.metadata.uid for job in jobs[:2]))
    assert placed(plan(refused, after(10))) == ["sick-0", "sick-1", "well-0", "well-1"]
    crowded = replace(snapshot, lanes=Lanes((LanesLeft("sick", 0),)))
    assert placed(plan(crowded, after(10))) == ["sick-0", "sick-1", "well-0", "well-1"]


def test_who_cannot_be_told_keeps_no_other_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPLAINED_MAX", 1)
    jobs = of_two_namespaces(3, 1)
    snapshot = replace(make_snapshot(*jobs, gpus=()), backing_off=(jobs[0].metadata.uid,))
    items = [item for item in plan(snapshot, after(10)).items if isinstance(item, WriteStatus)]
    assert {item.job.metadata.name for item in items} == {"sick-0", "sick-1"}


def test_what_frees_gpus_comes_before_what_takes_them() -> None:
    ending = running(make_job("ending", uid="z"), ("n0", ("GPU-4",)))
    snapshot = make_snapshot(ending, make_job("new", uid="a", created=1.0), gpus=GPUS)
    written = [item for item in plan(snapshot, after(10)).items if isinstance(item, WriteStatus)]
    names = [item.job.metadata.name for item in written]
    assert names == ["ending", "new"]
    assert written[0].status.placement is None, "its pod is gone"
