"""Changes to a picture, and what they do to the jobs that were there before."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJobStatus, SharingMode
from gpujob_api.gpuqueue import GPUQueueStatus
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME, Snapshot, Taint
from gpujob_operator.decide.simulation.comparison import differences
from gpujob_operator.decide.simulation.edits import (
    ADDED_JOBS_MAX,
    Edits,
    MoreNodes,
    edited,
)
from gpujob_operator.decide.simulation.run import Limits, simulate
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pods,
    make_queue,
    make_snapshot,
    measured,
    running,
    with_status,
)

NOW = after(10)


def picture() -> Snapshot:
    """n0 with one GPU in use and little host room, drained, sick and reclaimed."""
    job = running(make_job("first", sharing=SharingMode.EXCLUSIVE))
    gpu = make_gpu(ours=[("uid-first-1-0", GIB)], driver=GIB, healthy=False)
    node = make_node(
        labels={LABEL_HOSTNAME: "n0", "pool": "a"},
        taints=(Taint("gpujob.dev/reclaim", "NoSchedule", "1"), Taint("keep", "NoSchedule")),
        cpu_milli_free=1,
        memory_bytes_free=2,
        ready=False,
        unschedulable=True,
        not_ready_since=after(1),
    )
    gpu_node = make_gpu_node("n0", gpu, price=2.5, unschedulable=True)
    return make_snapshot(job, pods=make_pods(job), nodes=[node], gpu_nodes=[gpu_node])


def test_more_nodes_are_alike_and_idle() -> None:
    seen = edited(picture(), Edits(more_nodes=(MoreNodes("n0", 2),)), NOW)
    assert [node.name for node in seen.nodes] == ["n0", "n0-what-if-0", "n0-what-if-1"]
    view, gpu_node = seen.nodes[1], seen.gpu_nodes[1]
    assert (view.ready, view.unschedulable, view.not_ready_since) == (True, False, None)
    assert view.labels == {LABEL_HOSTNAME: "n0-what-if-0", "pool": "a"}
    assert [taint.key for taint in view.taints] == ["keep"]
    assert view.cpu_milli_free == view.cpu_milli_allocatable > 1
    assert view.memory_bytes_free == view.memory_bytes_allocatable > 2
    assert (gpu_node.spec.price_per_gpu_hour, gpu_node.spec.unschedulable) == (2.5, False)
    gpu = gpu_node.status.gpus[0]
    assert (gpu.memory_used_bytes, gpu.memory_reserved_bytes, gpu.healthy) == (0, GIB, True)
    uuids = [gpu.uuid for node in seen.gpu_nodes for gpu in node.status.gpus]
    assert len(set(uuids)) == 3


def test_a_node_that_goes_takes_its_pods_with_it() -> None:
    seen = edited(picture(), Edits(without_nodes=("n0",)), NOW)
    assert (seen.nodes, seen.gpu_nodes, seen.pods) == ((), (), ())
    assert [job.metadata.name for job in seen.jobs] == ["first"]


def test_a_queue_keeps_what_it_holds_and_a_new_one_comes_to_the_others() -> None:
    held = replace(make_queue("vision", gpus=1), status=GPUQueueStatus(reserved_gpus=1))
    before = replace(picture(), queues=(held,))
    wanted = (make_queue("vision", gpus=7), make_queue("text", gpus=2))
    seen = {one.metadata.name: one for one in edited(before, Edits(queues=wanted), NOW).queues}
    assert seen["vision"].spec.nominal.gpus == 7
    assert (seen["vision"].metadata, seen["vision"].status) == (held.metadata, held.status)
    assert seen["text"].spec.nominal.gpus == 2


def test_a_job_arrives_now_whatever_its_file_says_of_its_past() -> None:
    copy = running(make_job("new", uid="known", created=-999))
    job = edited(picture(), Edits(jobs=(copy,)), NOW).jobs[-1]
    assert job.metadata.uid == "what-if-0"
    assert job.metadata.creation_timestamp == NOW
    assert (job.status.placement, job.status.attempt) == (None, 0)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        (Edits(without_nodes=("n9",)), "without node", "no node n9 .* existing nodes: n0"),
        (Edits(more_nodes=(MoreNodes("n9", 1),)), "more nodes", "no node n9 .* existing nodes: n0"),
        (Edits(more_nodes=(MoreNodes("n0", 0),)), "more nodes", "1 to 1000; got 0"),
        (Edits(jobs=(make_job("first"),)), "metadata.name", "job team/first already exists"),
        (
            Edits(jobs=(make_job("twice"), make_job("twice"))),
            "metadata.name",
            "job team/twice already exists",
        ),
        (
            Edits(jobs=(make_job("many"),) * (ADDED_JOBS_MAX + 1)),
            "jobs",
            f"at most {ADDED_JOBS_MAX} .* got {ADDED_JOBS_MAX + 1}",
        ),
    ],
)
def test_what_cannot_be_is_told_with_the_field(changes: Edits, field: str, problem: str) -> None:
    with pytest.raises(FieldError, match=problem) as caught:
        edited(picture(), changes, NOW)
    assert caught.value.field == field


def waiting(name: str, **fields: Any) -> Any:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, created=5, **fields)


def test_a_new_node_lets_the_next_start_earlier_and_only_that_is_a_difference() -> None:
    known = replace(measured(GIB, step=0), steps_total=1000)
    busy = running(make_job("busy", sharing=SharingMode.EXCLUSIVE), measurement=known)
    busy = with_status(busy, observed_at=NOW)
    before = make_snapshot(busy, waiting("next"), pods=make_pods(busy))
    more = edited(before, Edits(more_nodes=(MoreNodes("n0", 1),)), NOW)
    found = differences(simulate(before, NOW, Limits()), simulate(more, NOW, Limits()))
    assert [one.after.name for one in found] == ["team/next"]
    assert found[0].before.starts_seconds == pytest.approx(100, abs=2)
    assert found[0].after.starts_seconds == 0
    assert found[0].starts_otherwise
    assert not found[0].stops_otherwise


def test_a_more_important_job_interrupts_and_that_is_a_difference() -> None:
    low = running(make_job("low", sharing=SharingMode.EXCLUSIVE))
    before = make_snapshot(low, pods=make_pods(low))
    high = replace(waiting("high", priority=5), metadata=waiting("high").metadata)
    after_it = edited(before, Edits(jobs=(high,)), NOW)
    limits = Limits(horizon_seconds=3600)
    found = differences(simulate(before, NOW, limits), simulate(after_it, NOW, limits))
    assert [one.after.name for one in found] == ["team/low"]
    assert found[0].stops_otherwise
    assert [stop.reason for stop in found[0].after.stopped] == ["Preempted"]


def test_a_changed_job_has_another_spec_and_its_own_status() -> None:
    before = picture()
    job = before.jobs[0]
    other = replace(job, spec=replace(job.spec, priority=7), status=GPUJobStatus())
    found = edited(before, Edits(changed_jobs=(other,)), NOW).jobs
    assert found[0].spec.priority == 7
    assert found[0].status == job.status
    assert found[0].metadata.generation == job.metadata.generation + 1
    assert found[1:] == before.jobs[1:]
    assert edited(before, Edits(changed_jobs=(job,)), NOW) == before, "an edit that changes nothing"


def test_a_changed_job_must_exist() -> None:
    with pytest.raises(FieldError, match="job team/nix does not exist"):
        edited(picture(), Edits(changed_jobs=(make_job("nix"),)), NOW)
    assert Edits(changed_jobs=(make_job("nix"),)).any
