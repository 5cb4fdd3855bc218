"""Errors that agents tell of pods are told by job, as long as the agents tell of them."""

from dataclasses import replace

from gpujob_api.gpunode import GPUNode, XIDEvent
from gpujob_operator.decide.model.snapshot import PodView, ProgramFault
from gpujob_operator.observe.node_readings import PODS_REMEMBERED_MAX, ProgramFaults
from tests.harness.builders import T0, make_gpu, make_gpu_node, make_job, make_pod, running

POD = make_pod(running(make_job("a")))
FAULT = ProgramFault("n0", "GPU-0", 31, POD.job_uid, POD.namespace)


def _node(*events: XIDEvent, name: str = "n0") -> GPUNode:
    return make_gpu_node(name, replace(make_gpu(), xids=events))


def _pod_of(uid: str) -> PodView | None:
    return POD if uid == POD.uid else None


def _nobody(uid: str) -> None:
    return None


def test_of_a_pod_that_is_there() -> None:
    faults = ProgramFaults()
    faults.observe(_node(XIDEvent(31, T0, POD.uid)), _pod_of)
    assert faults.all() == (FAULT,)
    same = faults.all()
    faults.observe(_node(XIDEvent(31, T0, POD.uid)), _nobody)
    assert faults.all() is same, "the pod went, what is known of it did not"
    faults.observe(_node(), _pod_of)
    assert faults.all() == ()


def test_of_a_pod_that_went_before_the_reading_came() -> None:
    faults = ProgramFaults()
    faults.remember(POD)
    faults.observe(_node(XIDEvent(31, T0, POD.uid)), _nobody)
    assert faults.all() == (FAULT,)


def test_not_of_hardware_nor_of_pods_of_others() -> None:
    faults = ProgramFaults()
    faults.observe(_node(XIDEvent(79, T0), XIDEvent(31, T0, "of somebody else")), _pod_of)
    assert faults.all() == ()


def test_a_node_that_goes_takes_its_errors_along() -> None:
    faults = ProgramFaults()
    elsewhere = replace(POD, uid="elsewhere", node="n1")
    pods = {pod.uid: pod for pod in (POD, elsewhere)}
    for pod in pods.values():
        faults.observe(_node(XIDEvent(31, T0, pod.uid), name=pod.node or ""), pods.get)
    assert len(faults.all()) == 2
    faults.forget("n0")
    assert len(faults.all()) == 1


def test_pods_that_are_remembered_are_bounded() -> None:
    faults = ProgramFaults()
    faults.remember(POD)
    for number in range(PODS_REMEMBERED_MAX):
        faults.remember(replace(POD, uid=f"pod-{number}"))
    faults.observe(_node(XIDEvent(31, T0, POD.uid)), _nobody)
    assert faults.all() == (), "the oldest was forgotten"
