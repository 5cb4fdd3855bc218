"""Jobs, pods and nodes of the scale benchmark, as the operator would have read them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpujob_api.gpujob import (
    Checkpoint,
    GPUJob,
    GPUJobSpec,
    GPUJobStatus,
    JobPhase,
    Measurement,
    Placement,
    Reservation,
    ReservationSource,
    Sharing,
    SharingMode,
    WorkerPlacement,
)
from gpujob_api.gpunode import GPU, GPUNode, GPUNodeStatus
from gpujob_api.meta import Metadata
from gpujob_api.report import Timing
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.packing.demand import Demand

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def measured_job(name: str, class_number: int, demand: Demand) -> GPUJob:
    """A waiting job that was measured in an earlier attempt (or asks for whole GPUs)."""
    requests = {"cpu": f"{demand.cpu_milli}m", "memory": str(demand.memory_bytes)}
    worker = {
        "name": "worker",
        "image": "trainer:1",
        "command": ["train", str(class_number)],
        "resources": {"requests": requests},
    }
    sharing = SharingMode.EXCLUSIVE if demand.exclusive else SharingMode.AUTO
    status = GPUJobStatus()
    if not demand.exclusive:
        measurement = Measurement(
            memory_bytes=int(demand.gpu_memory_bytes / 1.1),
            utilization_percent=demand.utilization_percent,
            samples=100,
            current=Timing(0.1, 0),
        )
        status = GPUJobStatus(measurement=measurement)
    return GPUJob(
        metadata=Metadata(
            name=name,
            namespace="bench",
            uid=f"uid-{name}",
            resource_version="1",
            generation=1,
            creation_timestamp=NOW,
        ),
        spec=GPUJobSpec(
            template={"spec": {"containers": [worker]}},
            gpus_per_worker=demand.gpus,
            sharing=Sharing(sharing),
            checkpoint=Checkpoint(volume_claim_name="checkpoints"),
        ),
        status=status,
    )


def running_job(
    name: str, class_number: int, demand: Demand, node: str, gpus: Sequence[str]
) -> GPUJob:
    """A job whose first attempt runs on these GPUs."""
    job = measured_job(name, class_number, demand)
    whole = demand.exclusive
    held = Reservation(
        memory_bytes=demand.gpu_memory_bytes,
        utilization_percent=100.0 if whole else demand.utilization_percent,
        source=ReservationSource.WHOLE_GPU if whole else ReservationSource.MEASURED,
        exclusive=whole,
    )
    # As the operator remembers a pod that it saw running.
    worker = WorkerPlacement(0, node, tuple(gpus), pod_uid=_pod_uid(name))
    status = replace(
        job.status,
        phase=JobPhase.RUNNING,
        attempt=1,
        placement=Placement((worker,), gpu_model="A100"),
        reservation=held,
        attempt_started_at=NOW,
        started_at=NOW,
        progressed_at=NOW,
    )
    return replace(job, status=status)


def running_pod(job: GPUJob) -> PodView:
    placement = job.status.placement
    assert placement is not None, "only running jobs have pods here"
    return PodView(
        name=f"{job.metadata.name}-1-0",
        namespace=job.metadata.namespace,
        uid=_pod_uid(job.metadata.name),
        job_uid=job.metadata.uid,
        attempt=1,
        rank=0,
        phase=PodPhase.RUNNING,
        node=placement.workers[0].node,
        gpus=placement.workers[0].gpus,
        created_at=NOW,
        started_at=NOW,
    )


def _pod_uid(name: str) -> str:
    """Of the pod of the job's first worker."""
    return f"pod-{name}"


def gpu_node(name: str, uuids: Sequence[str], model: str, memory_bytes: int) -> GPUNode:
    """A node's GPUs as its agent measured them now; processes are left out."""
    gpus = tuple(
        GPU(uuid, index, model, memory_total_bytes=memory_bytes, memory_used_bytes=0)
        for index, uuid in enumerate(uuids)
    )
    return GPUNode(
        metadata=Metadata(name, uid=f"gpunode-{name}"),
        status=GPUNodeStatus(observed_at=NOW, gpus=gpus),
    )
