"""Snapshots for properties of `plan`: sensible ones, and ones that nobody ever meant to exist."""

from datetime import datetime
from typing import Any

from hypothesis import strategies as st

from gpujob_api.gpujob import (
    Counters,
    GPUJob,
    GPUJobStatus,
    JobPhase,
    Placement,
    Reservation,
    ReservationSource,
    SharingMode,
    SpotPolicy,
    StopReason,
    WorkerPlacement,
)
from gpujob_api.gpunode import GPU, GPUNode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_api.quantities import GIB, MIB
from gpujob_api.report import CheckpointReport, FailureClass, WorkerPhase
from gpujob_api.start_refusal import StartRefusal
from gpujob_operator.decide.model.snapshot import (
    BoundVolume,
    GPUUsage,
    InvalidJob,
    NodeView,
    PodPhase,
    PodView,
    ReceivedReport,
    RefusedPod,
    RefusedTemplate,
    Snapshot,
    Taint,
)
from gpujob_operator.decide.model.stop_reasons import STOP_RULES
from tests.harness.builders import (
    MODEL,
    NAMESPACE,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_queue,
    make_report,
    measured,
    with_status,
)

NODES = ("n0", "n1", "n2")
UUIDS = tuple(f"GPU-{n}" for n in range(6))
# Far from T0, so that nothing started in the future; see `times`.
NOW = after(1000)

READY = tuple(make_node(name, spot=name == "n2") for name in NODES)

times = st.floats(0, 1000).map(after)
SIZES = (MIB, GIB, 3 * GIB, 8 * GIB, 11 * GIB, 24 * GIB, 30 * GIB)
memories = st.sampled_from(SIZES)
maybe_times = st.none() | times


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The first value four times as often as each other: too many obstacles hide each other."""
    return st.sampled_from([usual] * 4 + list(others))


@st.composite
def gpus(draw: st.DrawFn, uuid: str, index: int) -> GPU:
    return make_gpu(
        uuid,
        index=index,
        total=draw(st.sampled_from([24 * GIB, 24 * GIB - 1])),
        driver=draw(st.sampled_from([0, GIB])),
        unmanaged=draw(mostly(0, GIB, 20 * GIB)),
        model=draw(mostly(MODEL, "other")),
        healthy=draw(mostly(True, False)),
    )


@st.composite
def gpu_nodes(draw: st.DrawFn, nodes_max: int = 3) -> tuple[GPUNode, ...]:
    """GPUs of two models and sizes, spread over one to three nodes."""
    nodes: list[GPUNode] = []
    uuids = list(UUIDS)
    for name in NODES[: draw(st.integers(1, nodes_max))]:
        drawn = [draw(gpus(uuids.pop(0), index)) for index in range(draw(st.integers(0, 2)))]
        drawn = drawn or [make_gpu(uuids.pop(0))]
        if nodes and draw(mostly(False, True)):
            # An agent that lies calls another node's GPU its own.
            drawn.append(draw(gpus(nodes[0].status.gpus[0].uuid, len(drawn))))
        at = draw(mostly(1000.0, 990.0, 900.0))
        node = make_gpu_node(name, *drawn, at=at)
        nodes.append(node)
    return tuple(nodes)


@st.composite
def node_views(draw: st.DrawFn) -> tuple[NodeView, ...]:
    names = draw(st.lists(st.sampled_from(NODES), unique=True, max_size=3))
    taints = st.sampled_from(
        [(), (), (), (Taint("x", "NoSchedule"),), (Taint(TAINT_RECLAIM, "NoSchedule", "17"),)]
    )
    return tuple(
        make_node(
            name,
            cpu=draw(st.sampled_from([1, 8, 64])),
            spot=draw(st.booleans()),
            ready=draw(st.sampled_from([True, True, True, False])),
            not_ready_since=draw(maybe_times),
            taints=draw(taints),
        )
        for name in names
    )


@st.composite
def jobs_waiting(draw: st.DrawFn, number: int) -> GPUJob:
    """A job that was just submitted."""
    sharing = draw(st.sampled_from(list(SharingMode)))
    shared = sharing is SharingMode.SHARED
    return make_job(
        f"job{number}",
        created=draw(st.sampled_from([0.0, 500.0, 995.0])),
        priority=draw(st.integers(-1, 1)),
        queue=draw(mostly("default", "small", "nowhere")),
        workers=draw(mostly(1, 2, 3)),
        gpus_per_worker=1 if shared else draw(mostly(1, 2)),
        memory_bytes=draw(mostly(None, MIB, 8 * GIB, 30 * GIB)),
        models=draw(mostly((), (MODEL,), ("other",), ("none-such",))),
        sharing=sharing,
        spot=draw(mostly(*SpotPolicy)),
        suspend=draw(mostly(False, True)),
        max_slowdown_percent=draw(mostly(100, 0, 10)),
    )


@st.composite
def known_jobs(draw: st.DrawFn, number: int) -> GPUJob:
    """A waiting job of which something is known already."""
    job = draw(jobs_waiting(number))
    if draw(mostly(True, False)):
        utilization = draw(st.sampled_from([0.0, 20.0, 60.0]))
        known = measured(draw(mostly(3 * GIB, *SIZES)), utilization_percent=utilization)
        job = with_status(job, measurement=known)
    return job


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    workers = tuple(
        WorkerPlacement(
            rank,
            draw(st.sampled_from(NODES)),
            tuple(draw(st.lists(st.sampled_from(UUIDS), min_size=1, max_size=2, unique=True))),
        )
        for rank in range(draw(st.integers(1, 3)))
    )
    return Placement(workers, draw(st.booleans()), MODEL)


reservations = st.builds(
    Reservation,
    memories,
    st.sampled_from([0.0, 33.3, 100.0]),
    st.sampled_from(list(ReservationSource)),
    st.booleans(),
)
stops = st.builds(StopReason, st.sampled_from([*STOP_RULES, "x"]), st.just("m"), times)
start_refusals = st.builds(
    StartRefusal,
    st.sampled_from(["PodRejected", "Unschedulable"]),
    st.sampled_from(["words", "{}"]),
    st.integers(0, 50),
    times,
    st.none() | st.sampled_from(NODES),
)
statuses = st.builds(
    GPUJobStatus,
    phase=st.sampled_from(list(JobPhase)),
    attempt=st.integers(0, 3),
    placement=st.none() | placements(),
    reservation=st.none() | reservations,
    measurement=st.none() | st.builds(measured, memories, st.integers(0, 50)),
    checkpoint=st.none() | st.builds(CheckpointReport, st.integers(0, 50)),
    counters=st.builds(Counters, *[st.integers(0, 60)] * 5),
    stop=st.none() | stops,
    next_attempt_at=maybe_times,
    start_refusals=st.lists(start_refusals, max_size=2).map(tuple),
    held_seconds=st.none() | st.floats(0, 1e6),
    attempt_started_at=maybe_times,
    progressed_at=maybe_times,
    started_at=maybe_times,
    observed_at=maybe_times,
    observed_generation=st.integers(0, 2),
)


@st.composite
def odd_jobs(draw: st.DrawFn, number: int) -> GPUJob:
    """A job in any state, also in those that no code of ours writes."""
    job = draw(jobs_waiting(number))
    return with_status(job, **_fields(draw(statuses)))


def _fields(status: GPUJobStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in GPUJobStatus.__dataclass_fields__}


def _on(*nodes: str) -> dict[str, Any]:
    """Usable on these nodes only."""
    fields = [{"key": "metadata.name", "operator": "In", "values": list(nodes)}]
    return {"nodeSelectorTerms": [{"matchFields": fields}]}


reports = st.builds(
    make_report,
    st.integers(0, 3),
    phase=st.sampled_from(list(WorkerPhase)),
    step=st.integers(0, 60),
    checkpoint_step=st.none() | st.integers(0, 60),
    failure=st.none() | st.sampled_from(list(FailureClass)),
    rank=st.integers(0, 2),
)


REASONS = (
    "",
    "Evicted",
    "OOMKilled",
    "ImagePullBackOff",
    "Unschedulable",
    "StartError",
    "OutOfcpu",
)


@st.composite
def odd_pods(draw: st.DrawFn, jobs: tuple[GPUJob, ...], number: int) -> PodView:
    """A pod of one of the jobs or of none, in any state."""
    job = draw(st.sampled_from([*jobs, make_job("unknown")]))
    return make_pod(
        with_status(job, placement=None),
        rank=draw(st.integers(0, 2)),
        attempt=draw(st.integers(0, 3)),
        phase=draw(st.sampled_from(list(PodPhase))),
        exit_code=draw(st.sampled_from([None, None, 0, 1, 137, 143, 144])),
        uid=f"pod{number}",
        node=draw(st.none() | st.sampled_from(NODES)),
        gpus=tuple(draw(st.lists(st.sampled_from(UUIDS), max_size=2))),
        termination=draw(st.none() | reports),
        reason=draw(st.sampled_from(REASONS)),
        scheduled_since=draw(maybe_times),
        preempts=draw(mostly(False, True)),
        sandbox_ready=draw(mostly(True, False)),
        pulls_images=draw(mostly(False, True)),
        last_change_at=draw(maybe_times),
        finished_at=draw(maybe_times),
        deletion_at=draw(maybe_times),
    )


# Of claims that the jobs have; of none; and of a shape that nobody made. No two have one name.
volumes = st.lists(
    st.builds(
        BoundVolume,
        st.sampled_from(["v0", "v1"]),
        st.just(NAMESPACE),
        st.sampled_from(["checkpoints", "data"]),
        st.sampled_from([_on("n0"), _on("n1", "n2"), _on("gone"), {}, {"nodeSelectorTerms": 1}]),
    ),
    unique_by=lambda volume: volume.name,
    max_size=3,
).map(tuple)


@st.composite
def fresh_clusters(draw: st.DrawFn, jobs_max: int = 5, nodes_max: int = 3) -> Snapshot:
    """Nodes that are in order, and jobs that all wait."""
    jobs = tuple(draw(known_jobs(n)) for n in range(draw(st.integers(0, jobs_max))))
    queues: tuple[GPUQueue, ...] = (make_queue("default"), make_queue("small", gpus=2))
    measured_nodes = draw(gpu_nodes(nodes_max))
    return Snapshot(
        jobs=jobs, nodes=READY, gpu_nodes=measured_nodes, queues=queues, volumes=draw(volumes)
    )


REFUSALS = ("must be a number", "exceeded quota: q, requested: count/pods=1")


@st.composite
def odd_snapshots(draw: st.DrawFn) -> Snapshot:
    """Anything at all."""
    jobs = tuple(draw(odd_jobs(n)) for n in range(draw(st.integers(0, 4))))
    pods = tuple(draw(odd_pods(jobs, n)) for n in range(draw(st.integers(0, 6))))
    received = tuple(
        ReceivedReport(job.metadata.uid, rank, draw(times), draw(reports))
        for job in jobs
        for rank in range(draw(st.integers(0, 2)))
    )
    usage = {
        (job.metadata.uid, draw(st.integers(0, 3))): GPUUsage(draw(memories), 50.0, n)
        for n, job in enumerate(jobs)
    }
    refused = tuple(
        RefusedPod(job.metadata.uid, draw(st.integers(0, 3)), rank, "exceeded quota")
        for job in jobs
        for rank in range(draw(st.integers(0, 2)))
    )
    templates = tuple(
        RefusedTemplate(job.metadata.uid, draw(st.sampled_from(REFUSALS)), draw(times))
        for job in jobs
        if draw(st.booleans())
    )
    broken = (InvalidJob(make_job("broken").metadata, "spec.gpu", "is bad"),)
    return Snapshot(
        jobs=jobs,
        invalid_jobs=broken if draw(st.booleans()) else (),
        pods=pods,
        nodes=draw(st.just(READY) | node_views()),
        gpu_nodes=draw(gpu_nodes()),
        queues=(make_queue("small", gpus=2),),
        reports=received,
        usage=usage,
        refused_pods=refused,
        refused_templates=templates,
        listening_since=draw(maybe_times),
        volumes=draw(volumes),
    )


def later(seconds: float) -> datetime:
    return after(1000 + seconds)
