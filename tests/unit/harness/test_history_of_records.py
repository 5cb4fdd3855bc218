"""What pods record, as the recorder judges it: by who led when the pod came."""

from datetime import timedelta

from gpujob_api.gpujob import JobPhase
from gpujob_api.manifest import to_manifest
from tests.harness.builders import T0, make_gpu_node, make_job, placed
from tests.harness.history import History, Revision
from tests.harness.manifests import Manifest
from tests.harness.recorded_pods import recorded_pod

Entry = tuple[str, str, Manifest]
SHARED = make_job("first"), make_job("second")
FIRST, SECOND = (placed(one) for one in SHARED)


def lease(holder: str, seconds: float) -> Entry:
    """Taken so long after the placements."""
    taken = (T0 + timedelta(seconds=seconds)).isoformat()
    spec = {"holderIdentity": holder, "acquireTime": taken}
    return "Lease", "MODIFIED", {"metadata": {"name": "gpujob-operator"}, "spec": spec}


def pod(type_: str = "ADDED", phase: str = "Pending", **metadata: str) -> Entry:
    """Of the first job, with the record of its placement."""
    made = recorded_pod(FIRST)
    made["metadata"] |= metadata
    return "Pod", type_, made | {"status": {"phase": phase}}


def fold(*entries: Entry) -> History:
    history = History(30, leaders_freeze=True)
    stored = [("GPUJob", "ADDED", to_manifest(one)) for one in SHARED]
    node = ("GPUNode", "ADDED", to_manifest(make_gpu_node("n0")))
    for version, (kind, type_, item) in enumerate([node, *stored, *entries]):
        history.fold(Revision(version, kind, type_, item))
    return history


def broken(history: History) -> list[str]:
    """But for conditions, of which these jobs have none."""
    return sorted({one.promise for one in history.violations} - {"I4"})


SECOND_PLACED = ("GPUJob", "MODIFIED", to_manifest(SECOND))
FIRST_PLACED = ("GPUJob", "MODIFIED", to_manifest(FIRST))


def test_a_record_of_the_leaders_own_places_its_job() -> None:
    assert broken(fold(lease("one", -9), pod())) == []
    assert broken(fold(lease("one", -9), pod(), SECOND_PLACED)) == ["I1", "I2"]


def test_a_record_from_before_the_leader_places_nothing_and_its_pod_has_to_go() -> None:
    late = fold(lease("one", -9), lease("two", 1), SECOND_PLACED, pod())
    assert (broken(late), late.late) == ([], {"uid-pod"})
    asked = pod("MODIFIED", deletionTimestamp="2026-01-01T00:00:00Z")
    assert not fold(lease("one", -9), lease("two", 1), pod(), asked).late


def test_a_pod_that_was_there_when_somebody_took_the_lead_still_places_its_job() -> None:
    assert broken(fold(lease("one", -9), pod(), lease("two", 1), SECOND_PLACED)) == ["I1", "I2"]


def test_a_late_pod_that_is_taken_over_places_its_job_from_then_on() -> None:
    before = lease("one", -9), lease("two", 1), pod()
    assert not fold(*before, FIRST_PLACED).late
    assert broken(fold(*before, FIRST_PLACED, SECOND_PLACED)) == ["I1", "I2"]
    assert broken(fold(*before, SECOND_PLACED, FIRST_PLACED)) == ["I1", "I2"]


def test_without_a_lease_every_record_places_its_job() -> None:
    assert broken(fold(pod(), SECOND_PLACED)) == ["I1", "I2"]


def test_a_job_may_succeed_although_its_pod_went_before_any_status() -> None:
    """The pod alone recorded the attempt. Whoever leads has seen how it ended."""
    done = placed(SHARED[0], phase=JobPhase.SUCCEEDED)
    ended, gone = pod("MODIFIED", "Succeeded"), pod("DELETED", "Succeeded")
    end = ("GPUJob", "MODIFIED", to_manifest(done))
    assert broken(fold(lease("one", -9), pod(), ended, gone, end)) == []
    assert broken(fold(lease("one", -9), pod(), pod("DELETED"), end)) == ["I15"]
