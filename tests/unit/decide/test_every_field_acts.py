"""No field of a spec is without effect: each is given two values, and what is written differs.

What is written are the statuses, pods and deletions of two cycles. A new field of a schema needs a
row here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.codec import decode, encode
from gpujob_api.gpujob import GPUJob, GPUJobSpec, JobPhase, SharingMode
from gpujob_api.gpunode import GPUNode, GPUNodeSpec
from gpujob_api.gpuprofile import ProfileEntry
from gpujob_api.gpuqueue import GPUQueue, GPUQueueSpec
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_operator.decide.measurement.profile import with_entries
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import CreatePod, DeleteJob, DeletePod, PlanItem, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.snapshot_edits import with_statuses
from gpujob_operator.decide.planner import plan
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import (
    MODEL,
    NAMESPACE,
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_node,
    make_pod,
    make_queue,
    make_snapshot,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.crds import schema_of, walk
from tests.harness.jobs import job_manifest, set_field

CYCLES = 2
# Objects whose fields are looked at one by one; the template is Kubernetes' own.
_LEFT_OUT = ("spec.template",)


def job(name: str = "job", **fields: Any) -> GPUJob:
    """As a user wrote it."""
    manifest = job_manifest(name, **fields)
    metadata = Metadata(name, NAMESPACE, f"uid-{name}", "1", 1, creation_timestamp=T0)
    return GPUJob(metadata, decode(GPUJobSpec, manifest["spec"], "spec"))


def queue(name: str = "default", **fields: Any) -> GPUQueue:
    spec: dict[str, Any] = {}
    for path, value in fields.items():
        set_field(spec, path, value)
    return GPUQueue(Metadata(name, uid=f"queue-{name}", generation=1), decode(GPUQueueSpec, spec))


@dataclass(frozen=True, slots=True)
class World:
    """What the operator sees, and when."""

    seen: Snapshot
    now: datetime = T0

    def written(self) -> list[str]:
        found: list[str] = []
        seen = self.seen
        for _ in range(CYCLES):
            items = plan(seen, self.now).items
            found += [_words(item) for item in items]
            statuses = {i.job.metadata.uid: i.status for i in items if isinstance(i, WriteStatus)}
            seen = with_statuses(seen, statuses)
        return found


def _words(item: PlanItem) -> str:
    """Of an item, what is seen of it; nothing of what only repeats the spec."""
    match item:
        case WriteStatus():
            shown = replace(item.status, observed_at=None, observed_generation=0)
            return f"{item.job.metadata.name} {json.dumps(encode(shown), sort_keys=True)}"
        case CreatePod():
            return json.dumps(worker_pod(item, Configuration()), sort_keys=True)
        case DeletePod():
            return f"delete {item.pod.name} within {item.grace_seconds}"
        case DeleteJob():
            return f"delete {item.job.metadata.name}"
        case _:
            return ""


Gpus = tuple[str, ...]


def on(*jobs: GPUJob, gpus: int = 2, **seen: Any) -> World:
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    return World(make_snapshot(*jobs, gpu_nodes=[node], **seen))


def alone(one: GPUJob) -> World:
    return on(one)


def shared(one: GPUJob) -> World:
    """It says that it shares."""
    sharing = replace(one.spec.sharing, mode=SharingMode.SHARED)
    return on(replace(one, spec=replace(one.spec, sharing=sharing)))


def known_as_others(one: GPUJob) -> World:
    """The workload called `known` was measured before."""
    entry = ProfileEntry(MODEL, "", 2 * GIB, 20.0, 10, T0, current=Timing(0.1, GIB))
    return on(one, profiles=(with_entries(job(workload="known"), None, (entry,)),))


def beside_a_closed_queue(one: GPUJob) -> World:
    return on(one, queues=(make_queue("open"), make_queue("closed", gpus=0)))


def after_another(one: GPUJob) -> World:
    """One GPU for two jobs."""
    return on(job("earlier"), replace(one, metadata=replace(one.metadata, uid="z")), gpus=1)


def ended(one: GPUJob) -> World:
    done = with_status(one, phase=JobPhase.SUCCEEDED, attempt=1, finished_at=T0, started_at=T0)
    return replace(on(done), now=after(100))


def beside_a_busy_job(one: GPUJob) -> World:
    held = reserve(4 * GIB, utilization_percent=60.0)
    tenant = running(job("tenant", **{"sharing.maxSlowdownPercent": 100}), held=held)
    tenant = with_status(tenant, measurement=measured(4 * GIB, utilization_percent=60.0))
    waits = with_status(one, measurement=measured(2 * GIB, utilization_percent=60.0))
    return on(tenant, waits, gpus=1, pods=(make_pod(tenant),))


def with_a_spot_node(one: GPUJob) -> World:
    return on(one, nodes=(make_node("n0", spot=True),))


def failed(one: GPUJob) -> World:
    runs = running(one)
    return on(runs, pods=(make_pod(runs, exit_code=1),))


def hanging(one: GPUJob) -> World:
    runs = running(one)
    node = make_gpu_node("n0", make_gpu("GPU-0"), at=3600)
    seen = make_snapshot(runs, pods=(make_pod(runs),), gpu_nodes=[node])
    return World(seen, after(3600))


@dataclass(frozen=True, slots=True)
class Case:
    values: tuple[Any, Any]
    world: Callable[[GPUJob], World] = alone


OF_JOBS: Mapping[str, Case] = {
    "workload": Case(("known", "other"), known_as_others),
    "queue": Case(("open", "closed"), beside_a_closed_queue),
    "priority": Case((0, 5), after_another),
    "suspend": Case((False, True)),
    "ttlSecondsAfterFinished": Case((10, 10_000), ended),
    "workers": Case((1, 2)),
    "gpusPerWorker": Case((1, 2)),
    "gpu.memory": Case(("2Gi", "4Gi"), shared),
    "gpu.models": Case(([MODEL], ["NVIDIA L4"])),
    "sharing.mode": Case(("Auto", "Exclusive"), known_as_others),
    "sharing.maxSlowdownPercent": Case((0, 100), beside_a_busy_job),
    "optimize.mode": Case(("Auto", "Off")),
    "optimize.precision": Case(("float32", "bfloat16")),
    "optimize.batchSize.total": Case((64, 128)),
    "optimize.batchSize.perStep": Case((8, 16)),
    "optimize.activationCheckpointing": Case(("On", "Off")),
    "optimize.compile": Case(("On", "Off")),
    "optimize.dataLoading": Case(("On", "Off")),
    "checkpoint.volumeClaimName": Case(("a", "b")),
    "checkpoint.interval": Case(("1m", "10m")),
    "checkpoint.keep": Case((2, 5)),
    "checkpoint.path": Case(("out", "runs")),
    "checkpoint.resumeArguments": Case((["--resume"], ["--init"])),
    "spot.policy": Case(("Require", "Never"), with_a_spot_node),
    "disruption": Case(("Avoid", "Allow")),
    "retry.limit": Case((0, 3), failed),
    "retry.hangTimeoutSeconds": Case((60, 86_400), hanging),
}


@pytest.mark.parametrize("path", OF_JOBS)
def test_a_field_of_a_job(path: str) -> None:
    case = OF_JOBS[path]
    fields: dict[str, Any] = {"checkpoint.volumeClaimName": "claim"}
    if path == "checkpoint.resumeArguments":
        fields["checkpoint.path"] = "out"
    one, other = (case.world(job(**{**fields, path: value})).written() for value in case.values)
    assert one
    assert one != other


def in_the_queue(rules: GPUQueue) -> World:
    return on(job(priority=1), queues=(rules,))


def of_the_parent(rules: GPUQueue) -> World:
    closed = make_queue("closed", gpus=0)
    return on(job(), queues=(rules, closed, make_queue("open")))


def beside_a_queue_that_has_gpus(rules: GPUQueue) -> World:
    """Queues of one parent borrow from each other."""
    lends = make_queue("lends", gpus=2, gpu_memory=None, parent="parent")
    ours = replace(rules, spec=replace(rules.spec, parent="parent"))
    return on(job(**{"sharing.mode": "Exclusive"}), queues=(ours, lends, make_queue("parent")))


def beside_a_job_of_another_queue(rules: GPUQueue) -> World:
    tenant = running(job("tenant", queue="other"), held=reserve(4 * GIB, utilization_percent=1.0))
    tenant = with_status(tenant, measurement=measured(4 * GIB, utilization_percent=1.0))
    elsewhere = replace(tenant, metadata=replace(tenant.metadata, namespace="elsewhere"))
    waits = with_status(job(), measurement=measured(2 * GIB, utilization_percent=1.0))
    queues = rules, make_queue("other", sharing_group="lab")
    return on(elsewhere, waits, gpus=1, pods=(make_pod(elsewhere),), queues=queues)


def beside_a_queue_of_weight_ten(rules: GPUQueue) -> World:
    """Each queue has a job on a GPU and one that waits, and one GPU is free."""
    jobs: list[GPUJob] = []
    for number, name in enumerate(("default", "ten")):
        runs = running(job(f"{name}-runs", queue=name), ("n0", (f"GPU-{number}",)))
        jobs += [runs, job(f"{name}-waits", queue=name)]
    pods = tuple(make_pod(one) for one in jobs if one.status.placement is not None)
    return on(*jobs, gpus=3, pods=pods, queues=(rules, make_queue("ten", weight=10)))


@dataclass(frozen=True, slots=True)
class QueueCase:
    values: tuple[Any, Any]
    world: Callable[[GPUQueue], World] = in_the_queue
    others: Mapping[str, Any] | None = None


NOTHING = {"nominal.gpus": 0}
OF_QUEUES: Mapping[str, QueueCase] = {
    "weight": QueueCase((1, 100), beside_a_queue_of_weight_ten),
    "parent": QueueCase(("closed", "open"), of_the_parent),
    "namespaces": QueueCase(([NAMESPACE], ["others"])),
    "priority.minimum": QueueCase((0, 5)),
    "priority.maximum": QueueCase((0, 5)),
    "sharingGroup": QueueCase(("lab", "x"), beside_a_job_of_another_queue),
    "nominal.gpus": QueueCase((0, 2)),
    "nominal.gpuMemory": QueueCase(("1Gi", "64Gi")),
    "borrowingLimit.gpus": QueueCase((0, 2), beside_a_queue_that_has_gpus, NOTHING),
    "borrowingLimit.gpuMemory": QueueCase(
        ("0", "64Gi"), beside_a_queue_that_has_gpus, {"nominal.gpuMemory": "1Gi"}
    ),
}


@pytest.mark.parametrize("path", OF_QUEUES)
def test_a_field_of_a_queue(path: str) -> None:
    case = OF_QUEUES[path]
    others = dict(case.others or {})
    one, other = (case.world(queue(**{**others, path: v})).written() for v in case.values)
    assert one
    assert one != other


def on_the_node(spec: GPUNodeSpec) -> World:
    """Two nodes of one kind; these are the words of the one whose name comes later."""
    other = make_gpu_node("a", make_gpu("GPU-a"), price=1.0)
    ours = replace(make_gpu_node("b", make_gpu("GPU-b")), spec=spec)
    return World(make_snapshot(job(), gpu_nodes=[other, ours]))


OF_NODES: Mapping[str, tuple[Any, Any]] = {
    "pricePerGpuHour": (0.1, 10.0),
    "unschedulable": (False, True),
}


@pytest.mark.parametrize("path", OF_NODES)
def test_a_field_of_a_node(path: str) -> None:
    cheap = {"pricePerGpuHour": 0.1}
    one, other = (
        on_the_node(decode(GPUNodeSpec, {**cheap, path: value})).written()
        for value in OF_NODES[path]
    )
    assert one
    assert one != other


@pytest.mark.parametrize(
    ("kind", "rows"), [(GPUJob, OF_JOBS), (GPUQueue, OF_QUEUES), (GPUNode, OF_NODES)]
)
def test_every_field_of_the_schema_has_a_row(kind: type, rows: Mapping[str, object]) -> None:
    """Of a profile's spec nothing is a wish: it says whose measurements these are."""
    paths = dict(walk(schema_of(kind), ""))
    fields = {
        path.removeprefix("spec.")
        for path, schema in paths.items()
        if path.startswith("spec.")
        and not path.startswith(_LEFT_OUT)
        and not path.endswith("[]")
        and not schema.get("properties")
    }
    assert fields == set(rows)
