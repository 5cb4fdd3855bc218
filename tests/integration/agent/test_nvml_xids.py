"""Errors that the driver tells as XIDs: those of hardware close a GPU until it was reset, those of
programs are told with the pod that met them."""

import pytest

from gpujob_api.quantities import GIB
from tests.harness.imitated_nvml import UNKNOWN, ImitatedGPU, ImitatedProcess
from tests.harness.imitated_nvml.agent_node import NVMLFailureError
from tests.integration.agent.conftest import Node

UID = "0f3ab2c4-1111-2222-3333-444455556666"
OTHER_UID = "99999999-aaaa-bbbb-cccc-dddddddddddd"


def _run(node: Node, pid: int, uid: str) -> None:
    node.tree.put(pid, f"0::/kubepods/pod{uid}/4f5c\n")
    node.gpu.processes.append(ImitatedProcess(pid, GIB))


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 94, 95, 119, 140, 145])
def test_hardware(node: Node, xid: int) -> None:
    node.driver.gpus.append(ImitatedGPU("GPU-1"))
    node.read()
    node.gpu.xids.append(xid)
    found = node.read().gpus
    assert (found[0].healthy, found[1].healthy) == (False, True)
    assert found[0].health_message.startswith(f"XID {xid}: ")
    assert found[0].health_message.endswith("until the GPU is reset or the node restarts")
    assert not node.read_gpu().healthy, "it stays so"


@pytest.mark.parametrize("xid", [8, 13, 31, 32, 68, 69, 109, 137, 999])
def test_programs(node: Node, xid: int) -> None:
    """One that the catalogue does not know is taken for a program's as well."""
    _run(node, 11, UID)
    node.read()
    node.gpu.xids.append(xid)
    found = node.read_gpu()
    assert (found.healthy, found.health_message) == (True, "")
    assert [(one.xid, one.pod_uid) for one in found.xids] == [(xid, UID)]


@pytest.mark.parametrize("xid", [43, 45, 63, 92, 154])
def test_what_says_nothing_of_the_gpu(node: Node, xid: int) -> None:
    _run(node, 11, UID)
    node.read()
    node.gpu.xids.append(xid)
    found = node.read_gpu()
    assert (found.healthy, found.xids) == (True, ())


def test_the_pod_of_a_program_that_died_of_it(node: Node) -> None:
    """The process is gone by the time of the reading that has the error."""
    _run(node, 11, UID)
    node.read()
    node.gpu.xids.append(31)
    node.gpu.processes = []
    assert [one.pod_uid for one in node.read_gpu().xids] == [UID]


def test_whose_error_it_is_among_two_pods_nobody_can_tell(node: Node) -> None:
    _run(node, 11, UID)
    _run(node, 12, OTHER_UID)
    node.read()
    node.gpu.xids.append(31)
    assert [one.pod_uid for one in node.read_gpu().xids] == [None]


def test_what_happened_before_the_agent_started_is_not_told(node: Node) -> None:
    node.gpu.xids = [79]
    assert node.read_gpu().healthy


@pytest.mark.parametrize(("reset", "healthy"), [(False, False), (True, True)])
def test_a_new_agent_goes_on_from_what_was_told(node: Node, reset: bool, healthy: bool) -> None:
    """A restart of the agent heals no GPU; a reset of the GPU does."""
    node.read()
    node.gpu.xids.append(79)
    assert not node.read_gpu().healthy
    if reset:
        node.gpu.xids, node.gpu.energy_millijoules = [], 5
    node.reader.restart()
    assert node.read_gpu().healthy is healthy


def test_an_nvml_that_failed_for_a_moment_heals_no_gpu(node: Node) -> None:
    node.read()
    node.gpu.xids.append(95)
    assert not node.read_gpu().healthy
    node.driver.answers = {"nvmlDeviceGetCount_v2": UNKNOWN}
    with pytest.raises(NVMLFailureError):
        node.read()
    node.driver.answers = {}
    assert not node.read_gpu().healthy


def test_many_errors_are_bounded_and_hide_no_broken_gpu(node: Node) -> None:
    _run(node, 11, UID)
    node.read()
    node.gpu.xids += [13] * 20 + [79] + [13] * 20
    found = node.read_gpu()
    assert found.health_message.startswith("XID 79")
    assert len(found.xids) == 8
