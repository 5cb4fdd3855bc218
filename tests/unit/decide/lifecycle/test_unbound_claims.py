"""A claim whose volume is being made keeps no job from its node."""

from dataclasses import replace

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.lifecycle.attempt import advance
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.workers import job_pods_of
from tests.harness.builders import T0, after, make_job, make_pod, placed

WORDS = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"


def step(job: GPUJob, pod: PodView, at: float) -> NextStep:
    inputs = JobInputs(job_pods=job_pods_of(job, (pod,)))
    return advance(job, inputs, Configuration(), after(at))


def unbound(job: GPUJob, message: str = WORDS) -> PodView:
    """kube-scheduler looked at the pod at T0, when its claim had no volume yet."""
    pod = replace(make_pod(job), phase=PodPhase.PENDING, node=None, scheduled_since=T0)
    return replace(pod, reason="Unschedulable", message=message)


def test_a_volume_that_is_being_made_is_waited_for() -> None:
    job = placed(make_job())
    found = step(job, unbound(job), at=59)
    assert found.status.stop is None
    assert found.next_seconds == 1


def test_no_node_is_blamed_for_a_volume_that_does_not_come() -> None:
    """It would not come for a pod on another node either."""
    job = placed(make_job())
    found = step(job, unbound(job), at=60)
    assert found.status.stop is not None
    assert found.status.stop.reason == "Unschedulable"
    assert "kubectl describe persistentvolumeclaim" in found.status.stop.message
    assert [one.node for one in found.status.start_refusals] == [None]


def test_a_node_that_does_not_suit_is_still_left_soon() -> None:
    job = placed(make_job())
    found = step(job, unbound(job, "volume node affinity conflict"), at=5)
    assert [one.node for one in found.status.start_refusals] == ["n0"]
