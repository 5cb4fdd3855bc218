"""I11: what one plan places, the next one does not stop, where nothing else has happened."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import JobPhase, SharingMode
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue
from gpujob_operator.decide.model.plan import WriteStatus
from tests.harness.builders import make_gpu, make_gpu_node, make_job
from tests.harness.world import SETTLE_MAX, World
from tests.property.queue_trees import trees

# A job comes: workers, GPUs of each, priority, whether it shares GPUs, and which of the queues.
Arrival = tuple[int, int, int, SharingMode, int]
comes = st.tuples(
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.sampled_from([SharingMode.EXCLUSIVE, SharingMode.AUTO]),
    st.integers(0, 4),
)
# The jobs that run, by number, that end in one moment.
ends = st.sets(st.integers(0, 5), min_size=1, max_size=3)
Moments = list[tuple[list[Arrival], set[int] | None]]
moments = st.lists(st.tuples(st.lists(comes, max_size=3), st.none() | ends), max_size=10)


def world_of(nodes: int, queues: tuple[GPUQueue, ...]) -> World:
    gpus = [
        make_gpu_node(f"n{n}", *(make_gpu(f"GPU-{n}-{m}", index=m) for m in range(2)))
        for n in range(nodes)
    ]
    return World(gpu_nodes=gpus, queues=queues)


@settings(max_examples=60)
@given(st.integers(1, 3), moments)
def test_what_is_placed_is_not_stopped_in_the_same_moment(nodes: int, happens: Moments) -> None:
    _play(nodes, (), happens)


@settings(max_examples=120)
@given(st.integers(1, 3), trees(), moments)
def test_nor_is_it_between_queues(
    nodes: int, queues: tuple[GPUQueue, ...], happens: Moments
) -> None:
    _play(nodes, queues, happens)


def _play(nodes: int, queues: tuple[GPUQueue, ...], happens: Moments) -> None:
    names = [queue.metadata.name for queue in queues] or [DEFAULT_QUEUE]
    world, number = world_of(nodes, queues), 0
    for arrivals, ending in happens:
        world.seconds += 7
        for workers, gpus, priority, sharing, queue in arrivals:
            world.submit(
                make_job(
                    f"j{number}",
                    workers=workers,
                    gpus_per_worker=gpus,
                    priority=priority,
                    sharing=sharing,
                    queue=names[queue % len(names)],
                    created=world.seconds,
                )
            )
            number += 1
        running = sorted(world.running())
        for one in ending or ():
            if one < len(running):
                world.end(running[one])
        _settles_without_taking_back(world)


def _settles_without_taking_back(world: World) -> None:
    placed: set[str] = set()
    for _ in range(SETTLE_MAX):
        world.refresh()
        items = [one for one in world.step().items if isinstance(one, WriteStatus)]
        stopped = {one.job.metadata.name for one in items if one.status.phase is JobPhase.STOPPING}
        assert not stopped & placed, {name: world.status(name).stop for name in stopped & placed}
        placed |= {
            one.job.metadata.name
            for one in items
            if one.job.status.placement is None and one.status.placement is not None
        }
        if not items:
            return
