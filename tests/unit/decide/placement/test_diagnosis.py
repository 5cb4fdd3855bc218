"""What a job is told that fits nowhere: the figures, and what keeps most GPUs from it first."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, SpotPolicy
from gpujob_api.quantities import GIB
from gpujob_api.report import Protection
from gpujob_api.start_refusal import StartRefusal
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import Snapshot, Taint
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.requirements import requirements_of
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    make_template,
    running,
    statuses,
    with_status,
)
from tests.harness.capacity import build_capacity
from tests.harness.world import World


def message_of(job: GPUJob, snapshot: Snapshot) -> str:
    assumed = AssumedCapacity.of(build_capacity(snapshot, T0, {}))
    found = assign(requirements_of(job, None), assumed, Configuration())
    assert not isinstance(found, Assignment)
    return found.message


def test_findings_that_differ_in_the_figure_are_told_as_one_and_the_most_gpus_first() -> None:
    free = {"n0": 0, "n1": 1000, "n2": 1000, "n3": 64_000}
    nodes = [make_node(name, cpu_milli_free=milli) for name, milli in free.items()]
    gpu_nodes = [make_gpu_node(name, make_gpu(f"GPU-{name}")) for name in free]
    other = running(make_job("other"), ("n3", ("GPU-n3",)))
    snapshot = make_snapshot(other, nodes=nodes, gpu_nodes=gpu_nodes)
    message = message_of(make_job(template=make_template(cpu="4")), snapshot)
    assert message.endswith(
        "of 4 GPUs: 3 on nodes short of 3000 to 4000 milli-CPU; "
        "1 allocated exclusively to another job"
    )
    memory = [replace(node, cpu_milli_free=64_000, memory_bytes_free=0) for node in nodes[:1]]
    memory.append(replace(nodes[1], cpu_milli_free=64_000, memory_bytes_free=GIB))
    big = make_job(template=make_template(memory="3Gi"))
    snapshot = make_snapshot(nodes=memory, gpu_nodes=gpu_nodes[:2])
    assert message_of(big, snapshot).endswith("2 on nodes short of 2 GiB to 3 GiB host memory")


def _refused_by(count: int, words: str = "Insufficient rdma/hca") -> GPUJob:
    refusals = [
        StartRefusal("Unschedulable", f"pod a-{n}-0 on n{n}: {words}", 1, after(600), f"n{n}")
        for n in range(count)
    ]
    return with_status(make_job("a"), start_refusals=tuple(refusals))


def test_many_nodes_that_refused_a_job_are_told_as_one() -> None:
    """Their words differ in the names of the pod and the node only, and would fill a condition."""
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(8)]
    other = running(make_job("other"), ("n7", ("GPU-7",)))
    snapshot = make_snapshot(other, gpu_nodes=nodes)
    assert message_of(_refused_by(7), snapshot).endswith(
        "of 8 GPUs: 7 avoided: pod a-6-0 on n6: Insufficient rdma/hca (the newest of 7 refusals; "
        "status.startRefusals has all); 1 allocated exclusively to another job"
    )
    assert "7 avoided: pod a-6-0 on n6: {0} (the" in message_of(_refused_by(7, "{0}"), snapshot)


def test_the_newest_refusal_is_that_of_a_node_that_would_be_used_otherwise() -> None:
    nodes = [
        make_node(f"n{n}", taints=(Taint("team", "NoSchedule", ""),) if n == 3 else ())
        for n in range(4)
    ]
    gpu_nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(4)]
    message = message_of(_refused_by(4), make_snapshot(nodes=nodes, gpu_nodes=gpu_nodes))
    assert "3 avoided: pod a-2-0 on n2: Insufficient rdma/hca (the newest of 3 ref" in message


def test_two_nodes_that_refused_a_job_are_told_each_in_its_words() -> None:
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(2)]
    assert message_of(_refused_by(2), make_snapshot(gpu_nodes=nodes)).endswith(
        "1 avoided: pod a-0-0 on n0: Insufficient rdma/hca; "
        "1 avoided: pod a-1-0 on n1: Insufficient rdma/hca"
    )


def test_what_a_condition_says_last_is_whole_however_many_nodes_refused_the_job() -> None:
    words = f"kube-scheduler refused the pod: 0/40 nodes are available: {'selector ' * 20}"
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(40)]
    found = plan(make_snapshot(_refused_by(40, words), gpu_nodes=nodes), after(0)).items
    (scheduled,) = [one for one in statuses(found)["a"].conditions if one.type == "Scheduled"]
    assert scheduled.message.startswith("needs 1 x a whole GPU; of 40 GPUs: 40 avoided: ")
    assert scheduled.message.endswith("; position 1 of the jobs waiting for GPUs")


def test_words_with_braces_are_told_as_they_are() -> None:
    """A driver's or a label's words are nobody's template."""
    node = make_node(taints=(Taint("{x}", "NoSchedule", ""),))
    assert "taint {x} is not tolerated" in message_of(make_job(), make_snapshot(nodes=[node]))


@pytest.mark.parametrize(
    ("claim", "protection", "text"),
    [
        (None, None, "1 a spot node, not used without checkpoint.volumeClaimName"),
        (
            "ckpt",
            Protection.FROM_BEGINNING,
            "1 a spot node, not used by a run that cannot be resumed",
        ),
    ],
)
def test_a_preferred_spot_node_that_would_lose_the_run_is_named(
    claim: str | None, protection: Protection | None, text: str
) -> None:
    snapshot = make_snapshot(nodes=[make_node(spot=True)])
    job = with_status(make_job(claim=claim), protection=protection)
    assert text in message_of(job, snapshot)
    assumed = AssumedCapacity.of(build_capacity(snapshot, T0, {}))
    allowing = Configuration(spot_allow_unprotected=True)
    assert isinstance(assign(requirements_of(job, None, allowing), assumed, allowing), Assignment)


def test_jobs_that_a_spot_node_is_closed_to_for_different_reasons_are_told_apart() -> None:
    jobs = [
        make_job("a", claim=None),
        make_job("b", claim=None, spot=SpotPolicy.NEVER),
        make_job("c"),
        with_status(make_job("d"), protection=Protection.FROM_BEGINNING),
    ]
    assert len({requirements_of(job, None).node_constraints for job in jobs}) == 4


def test_requests_that_cannot_be_read_are_told() -> None:
    job = make_job(template=make_template(cpu="four"))
    assert "1 on nodes of any size: what the template's containers request" in message_of(
        job, make_snapshot()
    )


def test_an_init_container_counts() -> None:
    template = make_template(cpu="1")
    first = {"name": "fetch", "resources": {"requests": {"cpu": "65"}}}
    template["spec"]["initContainers"] = [first]
    message = message_of(make_job(template=template), make_snapshot())
    assert "1 on nodes short of 1000 milli-CPU" in message


@pytest.mark.parametrize(
    ("key", "effect", "reason"),
    [
        ("node.kubernetes.io/unschedulable", "NoSchedule", "InsufficientCapacity"),
        ("node.kubernetes.io/not-ready", "NoExecute", "InsufficientCapacity"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", "InsufficientCapacity"),
        ("node.cilium.io/agent-not-ready", "NoExecute", "InsufficientCapacity"),
        ("team", "NoSchedule", "Unsatisfiable"),
    ],
)
def test_a_temporary_taint_does_not_make_a_job_impossible(
    key: str, effect: str, reason: str
) -> None:
    world = World(make_job("j"), nodes=[make_node("n0", taints=(Taint(key, effect),))])
    world.tick(5)
    assert world.why("j").startswith(f"{reason}: ")
    assert f"taint {key} is not tolerated" in world.why("j")
