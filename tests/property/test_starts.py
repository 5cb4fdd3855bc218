"""What is kept of the search for the soonest start changes no answer."""

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase, ReservationSource, SpotPolicy, StopReason
from gpujob_api.quantities import GIB
from gpujob_operator.decide.backfill.earliest_start import (
    CandidateGpus,
    Candidates,
    ReadyTime,
    candidates,
)
from gpujob_operator.decide.backfill.nomination import earliest_start
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.cache.release_arrays import ReleaseArrays
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.cache.tenancy import TenancyArrays
from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import NodeView, Snapshot, Taint
from gpujob_operator.decide.placement.gpu_filter import after_departures, why_not
from gpujob_operator.decide.placement.memo import Forgetful
from gpujob_operator.decide.placement.node_filter import nodes_for
from gpujob_operator.decide.placement.requirements import (
    JobRequirements,
    WorkerRequest,
    requirements_of,
    resolve,
)
from tests.harness.builders import (
    NAMESPACE,
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_queue,
    make_snapshot,
    make_template,
    measured,
    reserve,
    running,
    with_status,
)

CONFIGURATION = Configuration()


def of(job: GPUJob, namespace: str) -> GPUJob:
    return replace(job, metadata=replace(job.metadata, namespace=namespace))


TERM = {"matchExpressions": [{"key": "hall", "operator": "DoesNotExist"}]}
NOT_IN_HALL = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}
    }
}
WAITING = (
    make_job("of-a", memory_bytes=2 * GIB, queue="a"),
    of(make_job("of-others", memory_bytes=2 * GIB), "others"),
    of(make_job("of-b-and-others", memory_bytes=2 * GIB, queue="b"), "others"),
    make_job("small", memory_bytes=2 * GIB),
    make_job("large", memory_bytes=20 * GIB),
    make_job("pair", gpus_per_worker=2),
    make_job("gang", workers=3, memory_bytes=8 * GIB),
    make_job("on-demand", memory_bytes=2 * GIB, spot=SpotPolicy.NEVER),
    make_job("in-hall", template=make_template(nodeSelector={"hall": "a"})),
    make_job("not-in-hall", template=make_template(affinity=NOT_IN_HALL)),
)
MODELS = ("NVIDIA A10", "NVIDIA L4")
# All share; each queue by itself; two of them together.
QUEUES = (
    (),
    (make_queue("a"), make_queue("b")),
    (make_queue("a", sharing_group="x"), make_queue("b"), make_queue(sharing_group="x")),
)


@st.composite
def tenants(draw: st.DrawFn) -> GPUJob:
    """A job on one of the GPUs, with or without a known end."""
    name = f"j{draw(st.integers(0, 11))}"
    node, gpu = draw(st.integers(0, 2)), draw(st.integers(0, 1))
    held = reserve(
        draw(st.integers(1, 12)) * GIB,
        draw(st.sampled_from((ReservationSource.MEASURED,) * 3 + (ReservationSource.WHOLE_GPU,))),
        utilization_percent=draw(st.integers(0, 90)),
    )
    namespace = draw(st.sampled_from((NAMESPACE, "others")))
    # A UID never comes back in another namespace.
    uid = f"uid-{name}-of-{namespace}"
    queue = draw(st.sampled_from(("default", "a", "b")))
    job = running(
        of(make_job(name, uid=uid, queue=queue), namespace),
        (f"n{node}", (f"GPU-{node}{gpu}",)),
        held=held,
        at=-draw(st.integers(0, 200)),
    )
    match draw(st.integers(0, 3)):
        case 0:
            steps = draw(st.integers(100, 5000))
            known = replace(measured(GIB, step=100), steps_total=steps)
            return with_status(job, measurement=known, observed_at=T0)
        case 1:
            stop = StopReason("Preempted", "makes room", after(draw(st.integers(-10, 60))))
            return with_status(job, phase=JobPhase.STOPPING, stop=stop)
        case _:
            return job


@st.composite
def nodes_called(draw: st.DrawFn, name: str) -> NodeView:
    return make_node(
        name,
        ready=draw(st.integers(0, 9)) > 0,
        spot=draw(st.booleans()),
        labels=draw(st.sampled_from(({}, {"hall": "a"}))),
        taints=draw(st.sampled_from(((), (), (Taint("keep", "out", "NoSchedule"),)))),
    )


@st.composite
def pictures(draw: st.DrawFn) -> Snapshot:
    done = [
        with_status(
            make_job(f"j{number}", uid=f"done-{number}"),
            phase=JobPhase.SUCCEEDED,
            started_at=T0,
            finished_at=after(draw(st.integers(1, 300))),
        )
        for number in draw(st.sets(st.integers(0, 11), max_size=3))
    ]
    jobs = {job.metadata.uid: job for job in draw(st.lists(tenants(), max_size=8))}
    names = draw(st.sets(st.integers(0, 2), min_size=1))
    gpu_nodes = [
        make_gpu_node(
            f"n{n}",
            *(
                make_gpu(
                    f"GPU-{n}{gpu}",
                    index=gpu,
                    model=draw(st.sampled_from(MODELS)),
                    unmanaged=draw(st.sampled_from((0, 0, 4 * GIB))),
                )
                for gpu in range(2)
            ),
        )
        for n in sorted(names)
    ]
    nodes = [draw(nodes_called(f"n{n}")) for n in sorted(names)]
    queues = draw(st.sampled_from(QUEUES))
    return make_snapshot(*jobs.values(), *done, nodes=nodes, gpu_nodes=gpu_nodes, queues=queues)


Found = tuple[Candidates, ...]


def requirements(job: GPUJob, memory: SchedulerCache) -> JobRequirements:
    return requirements_of(job, None, party=memory.groups.party(job))


def kept(memory: SchedulerCache, *jobs: GPUJob) -> list[Found]:
    """The places of each, with all that the memory keeps."""
    memo, capacity = memory.assumed().memo, memory.capacity
    tenancy = memory.tenancy_of(capacity)
    return [
        candidates(requirements(job, memory), tenancy, capacity, memo, CONFIGURATION)
        for job in jobs
    ]


def anew(memory: SchedulerCache, releases: ReleaseTimes, *jobs: GPUJob) -> list[Found]:
    capacity = memory.capacity
    tenancy, memo = TenancyArrays().renew(capacity, ReleaseArrays(releases)), Forgetful()
    return [
        candidates(requirements(job, memory), tenancy, capacity, memo, CONFIGURATION)
        for job in jobs
    ]


def answers(found: list[Found], releases: ReleaseTimes) -> list[object]:
    return [
        (
            earliest_start(requirements_of(job, None), of_job, releases),
            [list(of_model) for of_model in of_job],
        )
        for job, of_job in zip(WAITING, found, strict=True)
    ]


@st.composite
def stories(draw: st.DrawFn) -> list[Snapshot]:
    """Pictures one after the other; in some only the ends of those that run have moved, so that
    nodes and GPUs stay the same objects."""
    found = [draw(pictures())]
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            found.append(replace(draw(pictures()), queues=found[0].queues))
            continue
        steps = st.integers(100, 5000)
        moved = [
            with_status(
                job,
                measurement=replace(measured(GIB, step=100), steps_total=draw(steps)),
                observed_at=T0,
            )
            if job.status.phase is JobPhase.RUNNING
            else job
            for job in found[-1].jobs
        ]
        found.append(replace(found[-1], jobs=tuple(moved)))
    return found


@given(stories(), st.integers(0, 100))
def test_places_that_were_kept_are_those_found_anew(story: list[Snapshot], seconds: int) -> None:
    memory = SchedulerCache.of(story[0])
    now: datetime = T0
    for picture in story:
        memory.update(picture, now)
        found = answers(kept(memory, *WAITING), memory.releases)
        releases = ReleaseTimes.of(picture.jobs, now)
        assert found == answers(anew(memory, releases, *WAITING), releases)
        now += timedelta(seconds=seconds)


@given(pictures())
def test_places_are_those_that_asking_every_gpu_finds(picture: Snapshot) -> None:
    memory = SchedulerCache.of(picture)
    memory.update(picture, T0)
    capacity, releases = memory.capacity, memory.releases
    for job in WAITING:
        asks = requirements(job, memory)
        (found,) = kept(memory, job)
        models = capacity.models(())
        expected = [asked_one_by_one(asks, model, capacity, releases) for model in models]
        assert [list(of_model) for of_model in found] == expected


def asked_one_by_one(
    asks: JobRequirements, model: str, capacity: Capacity, releases: ReleaseTimes
) -> list[CandidateGpus]:
    request = resolve(asks, model, capacity, CONFIGURATION)
    size = asks.job.spec.gpus_per_worker
    places: list[CandidateGpus] = []
    for node in nodes_for(asks, capacity):
        gpus = [gpu for gpu in node.gpus if gpu.model == model]
        found = (on_gpu(request, node.node.name, gpu, releases) for gpu in gpus)
        ready = sorted(place for place in found if place is not None)
        groups = zip(*[iter(ready)] * size, strict=False)
        places += [together(group) for group in groups]
    return sorted(places)


def together(gpus: tuple[CandidateGpus, ...]) -> CandidateGpus:
    return CandidateGpus(
        gpus[-1].soon,
        gpus[-1].node,
        tuple(uuid for one in gpus for uuid in one.uuids),
        tuple(gpu for one in gpus for gpu in one.gpus),
        tuple(tenant for one in gpus for tenant in one.tenants),
    )


def on_gpu(
    request: WorkerRequest, node: str, gpu: GPUCapacity, releases: ReleaseTimes
) -> CandidateGpus | None:
    """As soon as enough tenants have left, in the order of their ends."""
    leaving = sorted(gpu.tenants, key=lambda t: (releases.released_at(t.job_uid), t.job_uid))
    for count in range(len(leaving) + 1):
        gone = leaving[:count]
        left = after_departures(gpu, {tenant.job_uid for tenant in gone})
        if why_not(request, left) is None:
            moments = [releases.released_at(tenant.job_uid) for tenant in gone]
            at = max([1.0 if gpu.terminating_bytes else 0.0, *moments])
            soon = ReadyTime(at, count, -gpu.free_bytes, gpu.uuid)
            return CandidateGpus(soon, node, (gpu.uuid,), (gpu,), tuple(gone))
    return None


@given(pictures(), pictures())
def test_places_found_before_stay_as_they_were(picture: Snapshot, later: Snapshot) -> None:
    """A cycle looks again at those that it found while it places other jobs."""
    memory, later = SchedulerCache.of(picture), replace(later, queues=picture.queues)
    memory.update(picture, T0)
    found = anew(memory, memory.releases, *WAITING)
    expected = [list(of_model) for of_job in found for of_model in of_job]
    unseen = [of_model for of_job in kept(memory, *WAITING) for of_model in of_job]
    memory.update(later, T0)
    answers(kept(memory, *WAITING), memory.releases)
    assert [list(of_model) for of_model in unseen] == expected


def test_who_leaves_first_can_change_while_the_gpu_stays_the_same() -> None:
    def tenant(name: str, memory_bytes: int, steps: int) -> GPUJob:
        job = running(make_job(name), held=reserve(memory_bytes, utilization_percent=5))
        known = replace(measured(GIB, step=0), steps_total=steps)
        return with_status(job, measurement=known, observed_at=T0)

    memory = SchedulerCache()
    new = with_status(make_job("new"), measurement=measured(13 * GIB, utilization_percent=5))
    leaving: list[tuple[str, ...]] = []
    for large, small in ((10, 500), (500, 10)):
        jobs = tenant("large", 12 * GIB, large), tenant("small", 8 * GIB, small)
        memory.update(make_snapshot(*jobs), T0)
        ((found,),) = kept(memory, new)
        (place,) = found
        leaving.append(tuple(tenant.job_uid for tenant in place.tenants))
    assert leaving == [("uid-large",), ("uid-small", "uid-large")]
