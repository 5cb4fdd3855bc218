"""Streams end, break, go silent and fall behind; the cache is right all the same."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gpujob_operator.client.api_errors import ApiError, Gone, Silent, Throttled, Unavailable
from gpujob_operator.client.kube import GPU_NODES, JOBS, NODES, PODS, Listing, ResourceType
from gpujob_operator.client.list_pages import PAGE_OBJECTS
from gpujob_operator.client.retry import Retry
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.watch.relist import CHECK_PAGE_OBJECTS, OUR_KINDS, Relist
from gpujob_operator.observe.watch.watches import NODES_WATCHED, PODS_WATCHED, Watch, restart_of
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import Call, FakeKube
from tests.harness.manifests import job_manifest, node_manifest, pod_manifest
from tests.harness.waiting import eventually

JOB = placed(make_job())


class _Bench:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.cache = Cache(Dirty(), self.metrics, self.clock.now)
        self.silences = 0
        self.watch = Watch(self.kube, self.cache, self.metrics, PODS_WATCHED, sleep=self.pause)
        self.relist = Relist(
            self.kube,
            self.cache,
            silent=self._silent,
            watches=[self.watch],
            retry=Retry(sleep=self.pause),
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def pause(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        await asyncio.sleep(0)

    def _silent(self, kind: Kind) -> None:
        self.silences += 1

    async def start_watch(self) -> None:
        self.tasks.append(asyncio.create_task(self.watch.run()))
        await self.following()

    async def following(self) -> None:
        await eventually(lambda: self.kube.stream_count == 1)

    def lists(self) -> int:
        return sum(1 for call in self.kube.calls if call.verb == "list")

    async def pods(self, count: int) -> None:
        await eventually(lambda: len(self.cache.pods) == count)


@pytest.fixture
async def bench() -> AsyncGenerator[_Bench]:
    bench = _Bench()
    yield bench
    for task in bench.tasks:
        task.cancel()
    await asyncio.gather(*bench.tasks, return_exceptions=True)


async def test_first_the_list_then_the_events(bench: _Bench) -> None:
    bench.kube.put(PODS, pod_manifest(JOB))
    await bench.start_watch()
    assert len(bench.cache.pods) == 1
    assert Kind.POD in bench.cache.synced
    bench.kube.put(PODS, pod_manifest(JOB, 1))
    await bench.pods(2)
    bench.kube.remove(PODS, "job-1-0", "team")
    await bench.pods(1)


async def test_a_stream_that_ends_goes_on_from_where_it_was(bench: _Bench) -> None:
    await bench.start_watch()
    bench.kube.put(PODS, pod_manifest(JOB))
    await bench.pods(1)
    version = str(bench.kube.version)
    bench.kube.break_streams()
    await eventually(lambda: bench.kube.calls[-1].name == version)
    assert bench.kube.calls[-1].verb == "watch"
    assert bench.lists() == 1


async def test_bookmarks_move_the_place_to_go_on_from(bench: _Bench) -> None:
    await bench.start_watch()
    bench.kube.put(NODES, node_manifest())
    bench.kube.bookmark("pods")
    await asyncio.sleep(0)
    bench.kube.break_streams()
    await eventually(lambda: bench.kube.calls[-1].name == str(bench.kube.version))
    assert bench.lists() == 1


async def test_gone_lists_again_and_finds_what_vanished(bench: _Bench) -> None:
    bench.kube.put(PODS, pod_manifest(JOB))
    bench.kube.put(PODS, pod_manifest(JOB, 1))
    await bench.start_watch()
    stream = bench.kube._streams.pop()
    bench.kube.remove(PODS, "job-1-0", "team")
    stream.queue.put_nowait(Gone(410, "Expired", "too old resource version"))
    bench.kube._streams.append(stream)
    await bench.pods(1)
    assert bench.lists() == 2
    value = bench.metrics.registry.get_sample_value(
        "gpujob_watch_restarts_total", {"stream": "Pod", "reason": "gone"}
    )
    assert value == 1


async def test_a_broken_list_is_tried_until_it_works_with_growing_pauses(bench: _Bench) -> None:
    bench.kube.fail("list", "pods", times=6)
    await bench.start_watch()
    assert bench.lists() == 7
    pauses = bench.clock.slept
    assert len(pauses) == 6
    assert pauses[-1] > pauses[0]
    assert max(pauses) <= 10


async def test_a_list_waits_for_as_long_as_the_api_server_asks(bench: _Bench) -> None:
    bench.kube.fail("list", "pods", Throttled("slow down", 7.0))
    await bench.start_watch()
    assert 7 <= bench.clock.slept[0] < 8


async def test_an_api_server_may_be_away_for_hours(bench: _Bench) -> None:
    bench.kube.fail("list", "pods", times=1100)
    await bench.start_watch()
    assert bench.lists() == 1101
    assert max(bench.clock.slept) <= 10


@pytest.mark.parametrize(
    "error",
    [
        Throttled("slow down", 1.0),
        Unavailable(503, "ServiceUnavailable", "overloaded"),
        Unavailable(0, "ClientPayloadError", "lost"),
    ],
    ids=["throttled", "overloaded", "away"],
)
async def test_a_server_that_is_overloaded_or_away_is_not_asked_for_a_list(
    bench: _Bench, error: ApiError
) -> None:
    """It has what comes next still, and a list would cost it more than all that."""
    await bench.start_watch()
    bench.kube.put(PODS, pod_manifest(JOB))
    await bench.pods(1)
    version = str(bench.kube.version)
    bench.kube.fail("watch", "pods", error, times=9)
    bench.kube.break_streams(error)
    await eventually(lambda: len(bench.clock.slept) == 10)
    await bench.following()
    assert bench.lists() == 1
    begun = [call.name for call in bench.kube.calls if call.verb == "watch"]
    assert begun == ["0", *[version] * 10]
    assert bench.clock.slept[-1] > 2 * bench.clock.slept[0]


async def test_repeated_refusals_end_in_a_fresh_list(bench: _Bench) -> None:
    await bench.start_watch()
    bench.kube.fail("watch", "pods", ApiError(400, "BadRequest", "no"), times=2)
    bench.kube.break_streams(ApiError(400, "BadRequest", "no"))
    await eventually(lambda: bench.lists() == 2)
    await bench.following()


async def test_what_a_stream_brings_ends_a_row_of_failures(bench: _Bench) -> None:
    """A proxy that cuts each connection after a while costs neither long pauses nor lists."""
    await bench.start_watch()
    for number in range(6):
        bench.kube.put(PODS, pod_manifest(JOB, uid=f"pod-{number}", name=f"pod-{number}"))
        await bench.pods(number + 1)
        bench.kube.break_streams(Unavailable(0, "ClientPayloadError", "lost"))
        await eventually(lambda expected=number + 1: len(bench.clock.slept) == expected)
        await bench.following()
    assert bench.lists() == 1
    assert max(bench.clock.slept) <= 0.4


async def test_a_silent_stream_ends_in_a_fresh_list(bench: _Bench) -> None:
    """Whether it is dead, or from a version that is still to come after a restore."""
    await bench.start_watch()
    bench.kube.break_streams(Silent(0, "SocketTimeoutError", "silent"))
    await eventually(lambda: bench.lists() == 2)
    await bench.following()


async def test_a_restarted_watch_lists_again_at_once_however_silent_its_stream(
    bench: _Bench,
) -> None:
    await bench.start_watch()
    others: list[int] = []
    restart = restart_of([bench.watch], lambda: others.append(1))
    restart(Kind.QUEUE)
    assert (bench.lists(), others) == (1, [1])
    restart(Kind.POD)
    restart(Kind.POD)
    await eventually(lambda: bench.lists() == 2)
    await bench.following()
    bench.kube.bookmark("pods")
    bench.kube.put(PODS, pod_manifest(JOB))
    await bench.pods(1)
    assert (bench.lists(), others) == (2, [1])


async def test_a_watch_that_is_restarted_while_it_lists_lists_once_more(bench: _Bench) -> None:
    def restarted(call: Call) -> None:
        if call.verb == "list" and bench.lists() == 1:
            bench.watch.restart()

    bench.kube.before = restarted
    await bench.start_watch()
    assert bench.lists() == 2


async def test_refresh_lists_nodes_first_and_pods_last(bench: _Bench) -> None:
    """A pod must never be newer in the picture than its job's status. Agents wait for the nodes."""
    await bench.relist.refresh()
    order = [call.plural for call in bench.kube.calls]
    assert order[:3] == [NODES.plural, GPU_NODES.plural, JOBS.plural]
    assert order[-1] == PODS.plural
    assert bench.cache.ready


class _SlowLists:
    """Lists of pods and nodes wait until they may go on."""

    def __init__(self, bench: _Bench) -> None:
        self.go_on = asyncio.Event()
        self.waiting = 0
        self._list = bench.kube.list
        bench.kube.list = self.list

    async def list(self, kind: ResourceType, *arguments: Any, **options: Any) -> Listing:
        if kind is PODS:
            self.waiting += 1
            await self.go_on.wait()
        return await self._list(kind, *arguments, **options)


async def test_a_new_leader_lists_once_what_its_watch_was_listing(bench: _Bench) -> None:
    """Ten thousand objects take seconds, and there is no decision before the end."""
    slow = _SlowLists(bench)
    bench.kube.put(PODS, pod_manifest(JOB))
    bench.tasks.append(asyncio.create_task(bench.watch.run()))
    await eventually(lambda: slow.waiting == 1)
    refresh = asyncio.create_task(bench.relist.refresh())
    await eventually(lambda: slow.waiting == 2)
    slow.go_on.set()
    await refresh
    await bench.following()
    assert [call.plural for call in bench.kube.calls if call.verb == "list"].count("pods") == 1
    assert bench.watch.listed
    bench.kube.put(PODS, pod_manifest(JOB, rank=1))
    await bench.pods(2)


async def test_a_stream_that_is_there_goes_on_while_a_new_leader_lists(bench: _Bench) -> None:
    await bench.start_watch()
    await bench.relist.refresh()
    bench.kube.put(PODS, pod_manifest(JOB))
    await bench.pods(1)
    assert [call.plural for call in bench.kube.calls if call.verb == "list"].count("pods") == 2


async def test_a_watch_lists_itself_where_the_leaders_list_was_begun_before(
    bench: _Bench,
) -> None:
    """Data were restored meanwhile: the version of that list may be one that is still to come."""
    slow = _SlowLists(bench)
    bench.tasks.append(asyncio.create_task(bench.watch.run()))
    await eventually(lambda: slow.waiting == 1)
    refresh = asyncio.create_task(bench.relist.refresh())
    await eventually(lambda: slow.waiting == 2)
    needed = bench.watch.need
    bench.watch.restart()
    await eventually(lambda: bench.watch.need not in (None, needed))
    slow.go_on.set()
    await refresh
    await bench.following()
    assert slow.waiting == 3


async def test_a_watch_that_had_its_list_lists_itself_however_long_the_others_take(
    bench: _Bench,
) -> None:
    nodes = Watch(bench.kube, bench.cache, bench.metrics, NODES_WATCHED, sleep=bench.pause)
    retry = Retry(sleep=bench.pause)
    relist = Relist(bench.kube, bench.cache, silent=bench._silent, watches=[nodes], retry=retry)
    bench.kube.fail("list", "gpuqueues", times=10**9)
    bench.tasks.append(asyncio.create_task(nodes.run()))
    await bench.following()
    bench.tasks.append(asyncio.create_task(relist.refresh()))
    queues = [call for call in bench.kube.calls if call.plural == "gpuqueues"]
    await eventually(lambda: len(bench.kube.calls) > len(queues) + 10)
    listed = [call.plural for call in bench.kube.calls].count("nodes")
    nodes.restart()
    await eventually(lambda: [call.plural for call in bench.kube.calls].count("nodes") > listed)


async def test_a_watch_lists_itself_where_the_leader_gave_up(bench: _Bench) -> None:
    slow = _SlowLists(bench)
    bench.tasks.append(asyncio.create_task(bench.watch.run()))
    await eventually(lambda: slow.waiting == 1)
    refresh = asyncio.create_task(bench.relist.refresh())
    await eventually(lambda: slow.waiting == 2)
    refresh.cancel()
    slow.go_on.set()
    await bench.following()
    assert slow.waiting == 3


async def test_refresh_lists_a_kind_again_until_it_works_with_growing_pauses(
    bench: _Bench,
) -> None:
    bench.kube.fail("list", "nodes", times=12)
    bench.kube.fail("list", "nodes", Throttled("slow down", 7.0))
    await bench.relist.refresh()
    listed = [call.plural for call in bench.kube.calls]
    assert (listed.count("gpujobs"), listed.count("nodes"), listed[-1]) == (1, 14, "pods")
    pauses = bench.clock.slept
    assert pauses[:3] == sorted(pauses[:3])
    assert pauses[11] <= 30
    assert pauses[12] >= 7, "as long as the API server asks"


async def _check_all(bench: _Bench) -> None:
    for kind, resource in OUR_KINDS.items():
        await bench.relist._check(kind, resource)


async def test_the_safety_net_finds_a_deletion_that_no_event_told(bench: _Bench) -> None:
    bench.kube.put(JOBS, job_manifest(JOB))
    await bench.relist.refresh()
    bench.kube.remove(JOBS, "job", "team")
    await _check_all(bench)
    assert bench.cache.listers.job("uid-job") is None
    assert bench.silences == 1


async def test_an_event_that_comes_a_little_late_is_no_silence(bench: _Bench) -> None:
    await bench.relist.refresh()
    stored = bench.kube.put(JOBS, job_manifest(JOB))

    async def meanwhile(seconds: float) -> None:
        bench.cache.apply(Kind.JOB, "ADDED", stored)

    bench.relist._retry.sleep = meanwhile
    await _check_all(bench)
    assert bench.silences == 0
    assert bench.cache.listers.job("uid-job") is not None


async def test_all_quiet_is_all_well(bench: _Bench) -> None:
    bench.kube.put(JOBS, job_manifest(JOB))
    await bench.relist.refresh()
    assert set(bench.kube.pages_of.values()) == {PAGE_OBJECTS}
    await _check_all(bench)
    assert (bench.silences, bench.clock.slept) == (0, [])
    assert bench.kube.pages_of[JOBS.plural] == CHECK_PAGE_OBJECTS, "nobody waits for it"


async def test_the_safety_net_survives_an_api_server_that_is_away(bench: _Bench) -> None:
    bench.kube.fail("list", "gpujobs", times=3)
    bench.tasks.append(asyncio.create_task(bench.relist.run()))
    await eventually(lambda: bench.lists() >= 3 + len(OUR_KINDS))
