"""An agent speaks for the pods of its own node only: one that lies harms no job elsewhere."""

from dataclasses import replace

from gpujob_api.gpunode import XIDEvent
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.observe.node_readings import ProgramFaults
from gpujob_operator.observe.usage import MeasuredUsage
from tests.harness.builders import T0, make_gpu, make_gpu_node, make_job, make_pod, running

POD = make_pod(running(make_job("a")))
FULL = make_gpu(ours=[(POD.uid, 24 * GIB)])
TRUE = make_gpu(ours=[(POD.uid, 2 * GIB)])


def _pod_of(uid: str) -> PodView | None:
    return POD if uid == POD.uid else None


def test_memory_that_another_nodes_agent_sees_of_a_pod_is_nobodys() -> None:
    usage = MeasuredUsage()
    assert not usage.observe(make_gpu_node("n1", FULL), _pod_of)
    assert usage.usage() == {}
    assert usage.observe(make_gpu_node("n0", TRUE), _pod_of)
    usage.observe(make_gpu_node("n1", FULL, at=2), _pod_of)
    (found,) = usage.usage().values()
    assert (found.memory_peak_bytes, found.samples) == (2 * GIB, 1)
    assert [one.gpus for one in found.seen] == [("GPU-0",)]


def test_a_pod_that_is_on_no_node_yet_uses_nothing() -> None:
    usage = MeasuredUsage()
    unbound = replace(POD, node=None)
    assert not usage.observe(make_gpu_node("n0", FULL), lambda uid: unbound)


def test_errors_that_another_nodes_agent_tells_of_a_pod_are_not_believed() -> None:
    faults = ProgramFaults()
    gpu = replace(make_gpu(), xids=(XIDEvent(31, T0, POD.uid),))
    faults.observe(make_gpu_node("n1", gpu), _pod_of)
    assert faults.all() == ()
    faults.remember(POD)
    faults.observe(make_gpu_node("n1", gpu, at=2), lambda uid: None)
    assert faults.all() == (), "nor once the pod is gone"
    faults.observe(make_gpu_node("n0", gpu), lambda uid: None)
    assert [fault.job_uid for fault in faults.all()] == [POD.job_uid]
