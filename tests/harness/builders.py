"""Small builders of the nouns that decisions see: one line for what a test is about."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpujob_api.gpujob import (
    Checkpoint,
    GPUJob,
    GPUJobSpec,
    GPUJobStatus,
    GPURequest,
    JobPhase,
    Measurement,
    Placement,
    Reservation,
    ReservationSource,
    Retry,
    Sharing,
    SharingMode,
    Spot,
    SpotPolicy,
    WorkerPlacement,
)
from gpujob_api.gpunode import GPU, GPUNode, GPUNodeSpec, GPUNodeStatus, GPUProcess
from gpujob_api.gpuqueue import GPUQueue, GPUQueueSpec, Quota
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB, Memory
from gpujob_api.report import (
    CheckpointReport,
    Failure,
    FailureClass,
    Report,
    Timing,
    WorkerPhase,
)
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import (
    BoundVolume,
    GPUUsage,
    NodeView,
    PodPhase,
    PodView,
    ReceivedReport,
    Snapshot,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = "NVIDIA A10"
CARD_BYTES = 24 * GIB
NAMESPACE = "team"


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def make_template(
    *, cpu: str = "1", memory: str = "1Gi", command: tuple[str, ...] = ("train",), **pod: Any
) -> dict[str, Any]:
    worker = {
        "name": "worker",
        "image": "image:1",
        "command": list(command),
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    }
    return {"spec": {"containers": [worker], **pod}}


def make_job(
    name: str = "job",
    *,
    namespace: str = NAMESPACE,
    uid: str | None = None,
    created: float = 0.0,
    generation: int = 1,
    status: GPUJobStatus | None = None,
    memory_bytes: int | None = None,
    models: tuple[str, ...] = (),
    sharing: SharingMode = SharingMode.AUTO,
    max_slowdown_percent: int = 10,
    spot: SpotPolicy = SpotPolicy.PREFER,
    claim: str | None = "checkpoints",
    retries: int = 3,
    hang_seconds: int = 600,
    template: dict[str, Any] | None = None,
    **spec: Any,
) -> GPUJob:
    """A job as the API server has it. `created` is in seconds after T0; `spec` goes to the spec."""
    # Every job has a command of its own, or else a profile of one would be a profile of all.
    template = make_template(command=("train", name)) if template is None else template
    return GPUJob(
        metadata=Metadata(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{name}",
            resource_version="1",
            generation=generation,
            creation_timestamp=after(created),
        ),
        spec=GPUJobSpec(
            template=template,
            gpu=GPURequest(Memory(memory_bytes) if memory_bytes else None, models),
            sharing=Sharing(sharing, max_slowdown_percent),
            spot=Spot(spot),
            checkpoint=Checkpoint(volume_claim_name=claim),
            retry=Retry(retries, hang_seconds),
            **spec,
        ),
        status=status or GPUJobStatus(),
    )


def with_status(job: GPUJob, **changes: Any) -> GPUJob:
    return replace(job, status=replace(job.status, **changes))


def reserve(
    memory_bytes: int,
    source: ReservationSource = ReservationSource.MEASURED,
    utilization_percent: float = 20.0,
    exclusive: bool = False,
    cap_bytes: int | None = None,
) -> Reservation:
    return Reservation(memory_bytes, utilization_percent, source, exclusive, cap_bytes)


def capped(cap_bytes: int, memory_bytes: int = 0, utilization_percent: float = 20.0) -> Reservation:
    """Of an attempt that was placed with this cap; it may reserve more, for its contexts."""
    return reserve(
        max(cap_bytes, memory_bytes),
        ReservationSource.HINT,
        utilization_percent,
        cap_bytes=cap_bytes,
    )


def placed(
    job: GPUJob,
    *workers: tuple[str, tuple[str, ...]],
    attempt: int = 1,
    phase: JobPhase = JobPhase.STARTING,
    held: Reservation | None = None,
    at: float = 0.0,
    **status: Any,
) -> GPUJob:
    """The job on these GPUs: one (node, GPU UUIDs) for each rank. Default: GPU GPU-0 of n0."""
    workers = workers or (("n0", ("GPU-0",)),)
    places = tuple(WorkerPlacement(rank, node, gpus) for rank, (node, gpus) in enumerate(workers))
    return with_status(
        job,
        phase=phase,
        attempt=attempt,
        placement=Placement(places, gpu_model=MODEL),
        reservation=held or reserve(CARD_BYTES, ReservationSource.WHOLE_GPU, 100.0),
        attempt_started_at=after(at),
        **status,
    )


def running(job: GPUJob, *workers: tuple[str, tuple[str, ...]], **options: Any) -> GPUJob:
    """The job placed and running since T0."""
    defaults: dict[str, Any] = {"started_at": T0, "progressed_at": T0, "phase": JobPhase.RUNNING}
    return placed(job, *workers, **{**defaults, **options})


def measured(memory_bytes: int, step: int = 0, utilization_percent: float = 20.0) -> Measurement:
    timing = Timing(0.1, memory_bytes)
    return Measurement(memory_bytes, utilization_percent, 10, step=step, current=timing)


def make_pod(
    job: GPUJob,
    rank: int = 0,
    *,
    phase: PodPhase = PodPhase.RUNNING,
    exit_code: int | None = None,
    attempt: int | None = None,
    **fields: Any,
) -> PodView:
    """The pod of the job's current attempt, on its GPUs. With an exit code it is finished."""
    attempt = job.status.attempt if attempt is None else attempt
    if exit_code is not None:
        phase = PodPhase.SUCCEEDED if exit_code == 0 else PodPhase.FAILED
    place = job.status.placement.workers[rank] if job.status.placement else None
    defaults: dict[str, Any] = {
        "uid": f"{job.metadata.uid}-{attempt}-{rank}",
        "node": place.node if place else None,
        "gpus": place.gpus if place else (),
        "created_at": T0,
        "job_uid": job.metadata.uid,
    }
    return PodView(
        name=f"{job.metadata.name}-{attempt}-{rank}",
        namespace=job.metadata.namespace,
        attempt=attempt,
        rank=rank,
        phase=phase,
        exit_code=exit_code,
        **{**defaults, **fields},
    )


def make_pods(job: GPUJob, **fields: Any) -> tuple[PodView, ...]:
    """All pods of the current attempt alike."""
    return tuple(make_pod(job, rank, **fields) for rank in range(job.spec.workers))


def make_report(
    attempt: int = 1,
    *,
    phase: WorkerPhase = WorkerPhase.TRAINING,
    step: int = 10,
    checkpoint_step: int | None = None,
    failure: FailureClass | None = None,
    message: str = "it failed",
    **fields: Any,
) -> Report:
    saved = CheckpointReport(checkpoint_step) if checkpoint_step is not None else None
    failed = Failure(failure, message) if failure is not None else None
    fields.setdefault("current", Timing(0.1, 0))
    return Report(attempt, phase, step=step, checkpoint=saved, failure=failed, **fields)


def received(job: GPUJob, report: Report, at: float = 0.0) -> ReceivedReport:
    return ReceivedReport(job.metadata.uid, report.rank, after(at), report)


def used(
    memory_bytes: int, utilization_percent: float = 20.0, samples: int = 10, **fields: Any
) -> GPUUsage:
    return GPUUsage(memory_bytes, utilization_percent, samples, **fields)


def make_gpu(
    uuid: str = "GPU-0",
    *,
    total: int = CARD_BYTES,
    driver: int = 0,
    unmanaged: int = 0,
    ours: Iterable[tuple[str, int]] = (),
    model: str = MODEL,
    healthy: bool = True,
    index: int = 0,
) -> GPU:
    """A GPU with `unmanaged` bytes of nobody's job and (pod UID, bytes) of ours on it."""
    processes = [GPUProcess(100 + n, size, uid) for n, (uid, size) in enumerate(ours)]
    if unmanaged:
        processes.append(GPUProcess(99, unmanaged))
    return GPU(
        uuid=uuid,
        index=index,
        model=model,
        memory_total_bytes=total,
        memory_used_bytes=sum(process.memory_bytes for process in processes),
        memory_reserved_bytes=driver,
        healthy=healthy,
        health_message="" if healthy else "XID 79",
        processes=tuple(processes),
    )


def make_gpu_node(
    name: str = "n0", *gpus: GPU, at: float = 0.0, price: float | None = None, **spec: Any
) -> GPUNode:
    return GPUNode(
        metadata=Metadata(name, uid=f"gpunode-{name}"),
        spec=GPUNodeSpec(price_per_gpu_hour=price, **spec),
        status=GPUNodeStatus(observed_at=after(at), gpus=gpus or (make_gpu(),)),
    )


def make_node(name: str = "n0", *, cpu: int = 64, **fields: Any) -> NodeView:
    defaults: dict[str, Any] = {
        "cpu_milli_allocatable": cpu * 1000,
        "cpu_milli_free": cpu * 1000,
        "memory_bytes_allocatable": 256 * GIB,
        "memory_bytes_free": 256 * GIB,
    }
    return NodeView(name=name, **{**defaults, **fields})


def make_volume(
    *zones: str, claim: str = "checkpoints", name: str = "volume", namespace: str = NAMESPACE
) -> BoundVolume:
    """The volume of a claim, which nodes with these labels `zone` can use."""
    expression = {"key": "zone", "operator": "In", "values": list(zones)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return BoundVolume(name, namespace, claim, terms)


def make_queue(
    name: str = "default",
    *,
    borrow: int | None = None,
    parent: str = "",
    weight: int = 1,
    sharing_group: str | None = None,
    **quota: Any,
) -> GPUQueue:
    """A queue with this nominal quota that may borrow so many GPUs."""
    spec = GPUQueueSpec(
        weight=weight,
        parent=parent or None,
        sharing_group=sharing_group,
        nominal=Quota(**quota),
        borrowing_limit=Quota(gpus=borrow),
    )
    return GPUQueue(Metadata(name, uid=f"queue-{name}", generation=1), spec)


def make_snapshot(
    *jobs: GPUJob,
    pods: Iterable[PodView] = (),
    gpus: Iterable[GPU] | None = None,
    gpu_nodes: Iterable[GPUNode] = (),
    nodes: Iterable[NodeView] = (),
    **fields: Any,
) -> Snapshot:
    """The jobs on one node n0 with `gpus`, or on the nodes given."""
    gpu_nodes = tuple(gpu_nodes) or (make_gpu_node("n0", *(gpus or (make_gpu(),))),)
    nodes = tuple(nodes) or tuple(make_node(one.metadata.name) for one in gpu_nodes)
    return Snapshot(jobs=jobs, pods=tuple(pods), gpu_nodes=gpu_nodes, nodes=nodes, **fields)


def statuses(items: Iterable[object]) -> dict[str, GPUJobStatus]:
    """The status that a plan writes, by job name."""
    return {item.job.metadata.name: item.status for item in items if isinstance(item, WriteStatus)}
