"""In which order a plan has what it places: it is written in this order, and a burst takes long."""

from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.planner import plan
from tests.harness.builders import after, make_gpu, make_job, make_snapshot, running

GPUS = [make_gpu(f"GPU-{number}", index=number) for number in range(5)]


def test_what_is_admitted_first_is_placed_first() -> None:
    """I11: by priority and arrival, whatever the UIDs are."""
    jobs = [
        make_job("second", uid="c", created=1.0),
        make_job("third", uid="a", created=2.0),
        make_job("first", uid="d", created=3.0, priority=5),
        make_job("fourth", uid="b", created=4.0),
    ]
    found = plan(make_snapshot(*jobs, gpus=GPUS), after(10)).items
    placed = [
        item.job.metadata.name
        for item in found
        if isinstance(item, WriteStatus) and item.status.placement is not None
    ]
    assert placed == ["first", "second", "third", "fourth"]


def test_what_frees_gpus_comes_before_what_takes_them() -> None:
    ending = running(make_job("ending", uid="z"), ("n0", ("GPU-4",)))
    snapshot = make_snapshot(ending, make_job("new", uid="a", created=1.0), gpus=GPUS)
    written = [item for item in plan(snapshot, after(10)).items if isinstance(item, WriteStatus)]
    names = [item.job.metadata.name for item in written]
    assert names == ["ending", "new"]
    assert written[0].status.placement is None, "its pod is gone"
