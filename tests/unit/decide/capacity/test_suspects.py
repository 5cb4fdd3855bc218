"""Errors of programs close a GPU only where they are seen to follow the GPU."""

import pytest

from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.capacity.suspects import suspects
from gpujob_operator.decide.model.snapshot import ProgramFault
from gpujob_operator.decide.planner import plan
from tests.harness.builders import T0, make_gpu, make_gpu_node, make_job, make_snapshot, statuses


def fault(
    gpu: str, job: str, namespace: str = "team", xid: int = 31, node: str = "n0"
) -> ProgramFault:
    return ProgramFault(node, gpu, xid, f"uid-{job}", namespace)


def test_one_jobs_word_is_not_enough_however_often() -> None:
    assert suspects([fault("GPU-0", "a"), fault("GPU-0", "a", xid=13)]) == {}


def test_two_jobs_are_believed_with_the_numbers() -> None:
    found = suspects([fault("GPU-0", "a"), fault("GPU-0", "b", xid=13), fault("GPU-1", "c", "n")])
    message = "2 jobs within an hour, XID 13, 31"
    assert found == {("n0", "GPU-0"): message}


@pytest.mark.promise("I15")
def test_errors_that_follow_a_namespace_are_its_own() -> None:
    """A sweep of one bad program over all GPUs closes none of them."""
    swept = [fault(f"GPU-{gpu}", f"point-{gpu}-{n}") for gpu in range(8) for n in range(2)]
    assert suspects(swept) == {}
    assert suspects([*swept, fault("GPU-0", "other", "other")]) == {}, "one is left"
    assert list(suspects([*swept, fault("GPU-0", "x", "x"), fault("GPU-0", "y", "y")])) == [
        ("n0", "GPU-0")
    ]


def test_a_gang_on_many_gpus_says_nothing() -> None:
    assert suspects([fault("GPU-0", "gang"), fault("GPU-1", "gang"), fault("GPU-0", "b")]) == {}


def test_a_node_that_calls_a_gpu_its_own_says_nothing_of_the_gpu_of_another_node() -> None:
    """I15: an agent that lies closes GPUs of its own node only."""
    told = (fault("GPU-0", "a", node="n1"), fault("GPU-0", "b", node="n1"))
    assert list(suspects(told)) == [("n1", "GPU-0")]
    nodes = (make_gpu_node("n0", make_gpu()), make_gpu_node("n1", make_gpu()))
    cache = SchedulerCache()
    cache.update(make_snapshot(gpu_nodes=nodes, program_faults=told), T0)
    blocked = {
        name: gpu.blocked is not None
        for name, node in cache.capacity.nodes.items()
        for gpu in node.gpus
    }
    assert blocked == {"n0": False, "n1": True}


def test_nothing_new_is_placed_on_a_suspect_gpu_until_it_is_none() -> None:
    job, told = make_job("new"), (fault("GPU-0", "a"), fault("GPU-0", "b"))
    gpus, cache = [make_gpu()], SchedulerCache()
    closed = make_snapshot(job, gpus=gpus, program_faults=told)
    (status,) = statuses(plan(closed, T0, cache).items).values()
    assert status.placement is None
    scheduled = next(one for one in status.conditions if one.type == "Scheduled")
    assert "1 blocked (programs of different jobs failed on it)" in scheduled.message
    opened = make_snapshot(job, gpus=gpus)
    (status,) = statuses(plan(opened, T0, cache).items).values()
    assert status.placement is not None
