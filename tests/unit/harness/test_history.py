"""The checks of the recorder can fail: each promise is broken once in a made history."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, ReservationSource, SharingMode
from gpujob_api.manifest import to_manifest
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport
from tests.harness.builders import (
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    measured,
    placed,
    reserve,
    running,
    with_status,
)
from tests.harness.history import IMPOSTOR, LEAVING, History, Revision
from tests.harness.worker_ends import RENEWALS_UNTIL_LISTED

Entry = tuple[str, str, dict[str, Any]]
JOB = make_job()


def said(job: GPUJob, reason: str = "InsufficientCapacity") -> GPUJob:
    condition = Condition(
        "Scheduled", ConditionStatus.FALSE, reason, "needs 2 GiB, 1 GiB are free", T0
    )
    return with_status(job, conditions=(condition,))


def job(value: GPUJob, type_: str = "MODIFIED") -> Entry:
    return "GPUJob", type_, to_manifest(value)


def node(*gpus: Any, at: float = 0.0) -> Entry:
    return "GPUNode", "MODIFIED", to_manifest(make_gpu_node("n0", *gpus, at=at))


def pod(
    attempt: int = 1, phase: str = "Pending", type_: str = "ADDED", owner: str = "job"
) -> Entry:
    labels = {"gpujob.dev/job-uid": f"uid-{owner}", "gpujob.dev/attempt": str(attempt)}
    name = f"{owner}-{attempt}-0"
    return "Pod", type_, {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "status": {"phase": phase},
    }  # fmt: skip


def impostor(type_: str = "ADDED", **metadata: Any) -> Entry:
    """As like a worker as can be; it says that it is done."""
    _, _, item = pod(phase="Succeeded")
    labels = {**item["metadata"]["labels"], IMPOSTOR: "yes"}
    item["metadata"] = {**item["metadata"], "uid": "uid-x", "labels": labels, **metadata}
    return "Pod", type_, item


def fold(*entries: Entry, leaders_freeze: bool = False) -> History:
    history = History(telemetry_stale_seconds=30, leaders_freeze=leaders_freeze)
    for version, (kind, type_, item) in enumerate(entries):
        history.fold(Revision(version, kind, type_, item))
    return history


def broken(*entries: Entry) -> list[str]:
    return [violation.promise for violation in fold(*entries).violations]


def hold(name: str, gib: int, **spec: Any) -> GPUJob:
    return placed(make_job(name, **spec), held=reserve(gib * GIB))


WHOLE_LIFE = (
    node(),
    job(JOB, "ADDED"),
    job(placed(JOB)),
    pod(),
    pod(phase="Running", type_="MODIFIED"),
    job(running(JOB, held=reserve(2 * GIB))),
    pod(phase="Failed", type_="MODIFIED"),
    job(said(with_status(JOB, attempt=1, phase=JobPhase.PENDING), "BackingOff")),
    job(placed(JOB, attempt=2)),
    pod(2),
    pod(2, phase="Succeeded", type_="MODIFIED"),
    job(placed(JOB, attempt=2, phase=JobPhase.SUCCEEDED)),
)


def test_a_whole_life_breaks_nothing() -> None:
    history = fold(*WHOLE_LIFE)
    assert history.violations == []
    assert history.orphans() == []
    assert history.job_revisions["uid-job"] == 6


def test_two_jobs_may_fill_a_gpu_exactly() -> None:
    assert broken(node(), job(hold("a", 12)), job(hold("b", 12))) == []


@pytest.mark.parametrize(
    "entries",
    [
        (node(), job(hold("a", 12)), job(hold("b", 13))),
        (node(make_gpu(driver=1)), job(hold("a", 24))),
        (node(make_gpu(unmanaged=GIB)), job(hold("a", 24))),
    ],
    ids=["two jobs", "the driver", "an unmanaged process"],
)
def test_an_over_reserved_gpu_is_seen(entries: Sequence[Entry]) -> None:
    assert broken(*entries) == ["I1"]


def test_a_decision_may_rest_on_the_reading_before() -> None:
    grown = node(make_gpu(unmanaged=GIB))
    assert broken(node(), grown, job(hold("a", 24))) == []


def test_a_measured_leak_is_no_decision() -> None:
    first, beside = hold("a", 12), hold("b", 12)
    worker = pod(owner="a")
    seen = node(make_gpu(ours=[(worker[2]["metadata"]["uid"], 13 * GIB)]))
    before = (node(), job(first), worker, job(beside))
    leak = with_status(first, reservation=reserve(13 * GIB))
    assert broken(*before, seen, job(leak)) == []
    assert broken(*before, job(leak)) == ["I1"], "no agent saw it"


@pytest.mark.promise("I1")
def test_a_margin_above_what_was_measured_is_a_decision() -> None:
    """Whoever of the two is written first."""
    first, beside = hold("a", 8), hold("b", 15)
    worker = pod(owner="a")
    seen = node(make_gpu(ours=[(worker[2]["metadata"]["uid"], 9 * GIB)]))
    grown = with_status(first, reservation=reserve(10 * GIB), measurement=measured(10 * GIB))
    for order in ((job(grown), job(beside)), (job(beside), job(grown))):
        assert broken(node(), job(first), worker, seen, *order) == ["I1"]


def test_what_a_worker_said_excuses_nothing() -> None:
    first, beside = hold("a", 12), hold("b", 12)
    said_ = with_status(first, reservation=reserve(14 * GIB), measurement=measured(14 * GIB))
    assert broken(node(), job(first), job(beside), job(said_)) == ["I1"]


def test_a_finished_job_holds_nothing() -> None:
    ended = with_status(hold("a", 24), phase=JobPhase.FAILED)
    assert broken(node(), job(hold("a", 24)), job(ended), job(hold("b", 24))) == []
    assert broken(node(), job(hold("a", 24)), job(ended, "DELETED"), job(hold("b", 24))) == []


def test_sharing_with_an_exclusive_job_is_seen() -> None:
    exclusive = hold("a", 2, sharing=SharingMode.EXCLUSIVE)
    assert broken(node(), job(exclusive), job(hold("b", 2))) == ["I2"]
    whole = placed(make_job("a"), held=reserve(2 * GIB, ReservationSource.WHOLE_GPU))
    assert broken(node(), job(hold("b", 2)), job(whole)) == ["I2"]


def test_a_second_live_attempt_is_seen() -> None:
    again = placed(JOB, attempt=2)
    assert broken(node(), job(placed(JOB)), pod(), job(again), pod(2)) == ["I3"]
    gone = pod(type_="DELETED")
    assert broken(node(), job(placed(JOB)), pod(), gone, job(again), pod(2)) == []


def test_a_pod_that_a_frozen_leader_asked_for_has_to_be_asked_to_go() -> None:
    second = placed(JOB, attempt=2)
    before = node(), job(placed(JOB)), job(second), pod(2)
    assert broken(*before, pod()) == ["I3", "I3"]
    frozen = fold(*before, pod(), leaders_freeze=True)
    assert not frozen.violations
    assert frozen.late == {"uid-job-1-0"}
    kind, _, asked = pod()
    asked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not fold(*before, pod(), (kind, "MODIFIED", asked), leaders_freeze=True).late


def test_a_pod_that_did_not_come_late_is_a_second_live_attempt_whoever_froze() -> None:
    before = node(), job(placed(JOB)), pod(), job(placed(JOB, attempt=2))
    (violation,) = fold(*before, pod(2), leaders_freeze=True).violations
    assert violation.promise == "I3"


def test_an_attempt_that_goes_back_or_jumps_is_seen() -> None:
    second = placed(JOB, attempt=2)
    assert broken(node(), job(second), job(placed(JOB, attempt=1))) == ["I3"]
    assert broken(node(), job(placed(JOB)), job(placed(JOB, attempt=3))) == ["I3"]


def test_a_pod_before_its_placement_is_seen() -> None:
    assert broken(node(), job(JOB), pod()) == ["I3"]
    assert broken(node(), job(placed(JOB)), pod(2)) == ["I3"]


def test_waiting_without_a_reason_is_seen() -> None:
    accepted = Condition("Accepted", ConditionStatus.TRUE, "Valid", "the spec is valid", T0)
    assert broken(job(with_status(JOB, conditions=(accepted,)))) == ["I4"]
    assert broken(job(said(JOB))) == []
    lost = with_status(said(JOB), phase=JobPhase.RUNNING)
    assert broken(job(lost)) == ["I4"]


def test_life_after_the_end_is_seen() -> None:
    ended = placed(JOB, attempt=2, phase=JobPhase.SUCCEEDED)
    assert broken(*WHOLE_LIFE, job(with_status(ended, phase=JobPhase.FAILED))) == ["I5"]
    assert broken(*WHOLE_LIFE, pod(3)) == ["I5"]


def test_an_end_that_no_worker_of_the_job_had_is_seen() -> None:
    ended = job(placed(JOB, phase=JobPhase.SUCCEEDED))
    assert broken(node(), job(placed(JOB)), pod(), ended) == ["I15"]
    assert broken(node(), job(placed(JOB)), pod(), impostor(), ended) == ["I15"]
    done = pod(phase="Succeeded", type_="MODIFIED")
    assert broken(node(), job(placed(JOB)), pod(), done, ended) == []


def test_another_attempt_of_a_job_that_is_done_is_seen() -> None:
    _, _, running_on = pod(phase="Running")
    ended = {"name": "worker", "state": {"terminated": {"exitCode": 0}}}
    beside = {"name": "proxy", "state": {"running": {}}}
    running_on["status"]["containerStatuses"] = [beside, ended]
    done: Entry = ("Pod", "MODIFIED", running_on)
    again = job(placed(JOB, attempt=2))
    assert broken(node(), job(placed(JOB)), pod(), done, again) == ["I5"]
    assert broken(node(), job(placed(JOB)), pod(), impostor(), again) == []


def lease(holder: str) -> Entry:
    return ("Lease", "MODIFIED", {"metadata": {"name": "o"}, "spec": {"holderIdentity": holder}})


RENEWALS = RENEWALS_UNTIL_LISTED + 1
FIRST, SECOND = RENEWALS * [lease("one")], RENEWALS * [lease("two")]
DONE = pod(phase="Succeeded", type_="MODIFIED")
WENT = pod(phase="Succeeded", type_="DELETED")
AGAIN = job(placed(JOB, attempt=2))
PLACED = (node(), job(placed(JOB)), pod())


def test_another_attempt_by_a_leader_that_saw_the_end_is_seen() -> None:
    assert broken(*FIRST, *PLACED, DONE, WENT, AGAIN) == ["I5"]
    assert broken(*FIRST, *PLACED, DONE, *SECOND, AGAIN) == ["I5"], "the pod is there"
    assert broken(*FIRST, *PLACED, DONE, *SECOND, WENT, AGAIN) == ["I5"], "it was listed"


def test_another_attempt_by_a_leader_that_cannot_know_of_the_end_is_none() -> None:
    assert broken(*FIRST, *PLACED, DONE, WENT, *SECOND, AGAIN) == []
    assert broken(*FIRST, *PLACED, DONE, SECOND[0], WENT, *SECOND, AGAIN) == [], "not yet listed"


def test_an_impostor_that_is_taken_away_is_seen() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert broken(impostor(), impostor("MODIFIED")) == []
    assert broken(impostor(), impostor("MODIFIED", **going)) == ["I15"]
    assert broken(impostor(), impostor("DELETED")) == ["I15"]
    leaving = {"annotations": {LEAVING: "yes"}}
    assert broken(impostor(), impostor("DELETED", **leaving)) == []


def test_more_grace_than_was_told_is_seen() -> None:
    _, _, item = pod()
    item["spec"] = {"terminationGracePeriodSeconds": 5}
    item["metadata"]["deletionGracePeriodSeconds"] = 30
    assert broken(node(), job(placed(JOB)), ("Pod", "ADDED", item)) == ["I13"]
    item["spec"] = {"terminationGracePeriodSeconds": 30}
    assert broken(node(), job(placed(JOB)), ("Pod", "ADDED", item)) == []


def test_the_live_pod_of_a_job_that_somebody_keeps_is_an_orphan() -> None:
    metadata = replace(JOB.metadata, deletion_timestamp=T0)
    kept = replace(placed(JOB), metadata=metadata)
    assert fold(node(), job(placed(JOB)), pod(), job(kept)).orphans() == ["job-1-0"]
    ended = pod(phase="Failed", type_="MODIFIED")
    assert fold(node(), job(placed(JOB)), pod(), job(kept), ended).orphans() == []


def test_a_durable_step_that_goes_back_is_seen() -> None:
    saved = placed(JOB, checkpoint=CheckpointReport(7))
    assert broken(node(), job(saved), job(placed(JOB, checkpoint=CheckpointReport(6)))) == ["I6"]
    assert broken(node(), job(saved), job(placed(JOB))) == ["I6"]


def test_a_pod_without_a_live_owner_is_an_orphan() -> None:
    assert fold(*WHOLE_LIFE, pod(3)).orphans() == ["job-3-0"]
    alone = pod(owner="other")
    assert fold(alone).orphans() == ["other-1-0"]
    assert fold(alone, pod(owner="other", phase="Failed", type_="MODIFIED")).orphans() == []
    assert fold(alone, pod(owner="other", type_="DELETED")).orphans() == []


def test_a_placement_on_an_old_or_missing_reading_is_seen() -> None:
    assert broken(job(placed(JOB))) == ["I14"]
    assert broken(node(), job(placed(JOB, at=100))) == ["I14"]
    assert broken(node(at=90), job(placed(JOB, at=100))) == []
    # An attempt that is there already stays where it is.
    assert broken(node(), job(placed(JOB)), job(running(JOB, held=reserve(GIB)))) == []


def on_node(entry: Entry, name: str = "n0") -> Entry:
    kind, type_, item = entry
    return kind, type_, {**item, "spec": {"nodeName": name}}


def core_node(*taints: str, name: str = "n0") -> Entry:
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
    return "Node", "MODIFIED", {"metadata": {"name": name, "uid": name}, "spec": spec}


ENDED = on_node(pod(1, "Succeeded", "MODIFIED"))
ATTEMPT_1 = (job(running(hold("job", 4))), on_node(pod(1, "Running")))
ATTEMPT_2 = job(with_status(running(hold("job", 4)), attempt=2))
LEAVES = core_node("aws-node-termination-handler/spot-itn")


@pytest.mark.parametrize(
    ("between", "broken_promises"),
    [
        ((ENDED,), ["I5"]),
        ((LEAVES, ENDED), []),
        ((ENDED, LEAVES), []),
        ((LEAVES, core_node(), ENDED), ["I5"]),
        ((core_node("aws-node-termination-handler/spot-itn", name="n1"), ENDED), ["I5"]),
        ((core_node("example.com/another"), ENDED), ["I5"]),
    ],
    ids=["no sign", "before", "after", "called off", "another node", "another taint"],
)
def test_an_end_on_a_node_that_is_about_to_go_may_be_an_interruption(
    between: Sequence[Entry], broken_promises: list[str]
) -> None:
    found = broken(node(make_gpu()), *ATTEMPT_1, *between, ATTEMPT_2)
    assert [one for one in found if one == "I5"] == broken_promises
