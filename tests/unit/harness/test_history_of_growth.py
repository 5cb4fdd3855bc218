"""Growth that was measured is no decision; who is placed beside it by a plan that knew of it is."""

from datetime import timedelta

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import to_manifest
from gpujob_api.quantities import GIB
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    placed,
    reserve,
    with_status,
)
from tests.harness.history import History, Revision
from tests.harness.manifests import Manifest

Entry = tuple[str, str, Manifest]
FIRST = placed(make_job("a"), held=reserve(8 * GIB))
# When the plan was made that grows the first job.
PLAN = 9.0


def entry(job: GPUJob) -> Entry:
    return "GPUJob", "MODIFIED", to_manifest(job)


def grown(at: float | None = PLAN) -> Entry:
    """To what its agent saw it use, by a plan of this moment."""
    observed_at = None if at is None else after(at)
    return entry(with_status(FIRST, reservation=reserve(9 * GIB), observed_at=observed_at))


def beside(gib: float, at: float = PLAN) -> Entry:
    return entry(placed(make_job("b"), held=reserve(int(gib * GIB)), at=at))


def node(*ours: tuple[str, int], at: float = 0.0) -> Entry:
    return "GPUNode", "MODIFIED", to_manifest(make_gpu_node("n0", make_gpu(ours=ours), at=at))


def worker() -> Entry:
    labels = {"gpujob.dev/job-uid": "uid-a", "gpujob.dev/attempt": "1"}
    metadata = {"name": "a-1-0", "uid": "uid-a-1-0", "labels": labels}
    return "Pod", "ADDED", {"metadata": metadata, "status": {"phase": "Running"}}


def lease(holder: str, seconds: float) -> Entry:
    """Taken so long after T0."""
    taken = (T0 + timedelta(seconds=seconds)).isoformat()
    spec = {"holderIdentity": holder, "acquireTime": taken}
    return "Lease", "MODIFIED", {"metadata": {"name": "gpujob-operator"}, "spec": spec}


SEEN = node(("uid-a-1-0", 9 * GIB), at=8.0)


def broken(*entries: Entry) -> list[str]:
    """After the first job is there, of 24 GiB."""
    history = History(30)
    for version, (kind, type_, item) in enumerate((node(), entry(FIRST), worker(), *entries)):
        history.fold(Revision(version, kind, type_, item))
    return [violation.promise for violation in history.violations]


def test_whichever_of_the_two_writes_of_a_plan_comes_first() -> None:
    """I1."""
    assert broken(SEEN, grown(), beside(15.5)) == ["I1"]
    assert broken(SEEN, beside(15.5), grown()) == ["I1"]
    assert broken(SEEN, grown(), beside(15)) == []
    assert broken(SEEN, beside(15), grown()) == []


def test_a_placement_by_a_later_plan_that_is_written_first() -> None:
    assert broken(SEEN, beside(15.5, at=PLAN + 1), grown()) == ["I1"]


def test_a_placement_from_before_the_reading_is_excused() -> None:
    assert broken(beside(15.5, at=7.0), SEEN, grown()) == []
    assert broken(SEEN, beside(15.5, at=7.0), grown()) == [], "it was written late"


def test_of_a_plan_without_a_moment_nothing_is_known() -> None:
    assert broken(SEEN, beside(15.5), grown(at=None)) == []


@pytest.mark.parametrize("taken_at", [PLAN - 1, PLAN + 1])
def test_another_leader_may_not_know_what_the_one_before_it_decided(taken_at: float) -> None:
    """Its request arrives late, and nobody can tell which of them placed the other job."""
    one, two = lease("one", -9), lease("two", taken_at)
    assert broken(one, SEEN, beside(15.5), grown()) == ["I1"]
    assert broken(one, SEEN, beside(15.5), two, grown()) == []


def test_all_that_grows_in_a_plan_is_counted_together() -> None:
    """Each would have room beside the third."""
    jobs = [placed(make_job(name), held=reserve(6 * GIB)) for name in ("a", "c")]
    pods = [worker(), worker()]
    pods[1][2]["metadata"] = {
        "name": "c-1-0",
        "uid": "uid-c-1-0",
        "labels": {"gpujob.dev/job-uid": "uid-c", "gpujob.dev/attempt": "1"},
    }
    seen = node(("uid-a-1-0", 7 * GIB), ("uid-c-1-0", 7 * GIB))
    more = [with_status(job, reservation=reserve(7 * GIB), observed_at=after(PLAN)) for job in jobs]
    history = History(30)
    writes = [node(), *map(entry, jobs), *pods, seen, beside(11), *map(entry, more)]
    for version, (kind, type_, item) in enumerate(writes):
        history.fold(Revision(version, kind, type_, item))
    (violation,) = history.violations
    assert "b was placed with 1073741824 bytes too much: its plan knew that c grows" in str(
        violation
    )
