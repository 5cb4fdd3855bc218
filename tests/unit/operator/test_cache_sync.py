"""What a process does between the loss of what it knew and the full list that follows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.api_errors import Unavailable
from gpujob_operator.leadership.cache_sync import CacheSync
from gpujob_operator.observe.cache import Cache
from gpujob_operator.observe.dirty import Dirty
from tests.harness.executor_bench import ExecutorBench, create_item, status_item

pytestmark = pytest.mark.promise("I3")


class _Bench(ExecutorBench):
    """An executor whose permission is the cache's state, and lists that the test lets end."""

    def __init__(self) -> None:
        super().__init__()
        self.dirty = Dirty()
        self.cache = Cache(self.dirty, self.metrics, self.clock.now)
        self.sync = CacheSync(self.cache, self.dirty)
        self.executor._runner._writer.may_act = lambda: self.sync.synced
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.lists = 0
        self.failures: list[Exception] = []
        self.in_doubt = False
        self.began: list[bool] = []
        self.cache.begin_to_lead = self._begin

    def _begin(self, *, in_doubt: bool) -> None:
        self.began.append(in_doubt)

    async def refresh(self) -> None:
        self.lists += 1
        await self.may_list.wait()
        if self.failures:
            raise self.failures.pop()

    async def keep(self) -> None:
        leadership: Any = self
        await self.sync.keep(self.refresh, self.executor, leadership)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[_Bench]:
    bench = _Bench()
    keeping = asyncio.create_task(bench.keep())
    yield bench
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_nothing_is_synced_before_everything_was_listed(bench: _Bench) -> None:
    bench.may_list.clear()
    bench.sync.lose()
    await bench.settle()
    assert (bench.sync.synced, bench.lists) == (False, 1)
    bench.may_list.set()
    await bench.settle()
    assert bench.sync.synced
    assert bench.began == [False]
    assert bench.dirty.any.is_set()


async def test_a_loss_during_the_list_asks_for_another(bench: _Bench) -> None:
    bench.may_list.clear()
    bench.sync.lose()
    await bench.settle()
    bench.sync.lose()
    bench.may_list.set()
    await bench.settle()
    assert bench.sync.synced
    assert bench.lists == 2
    assert bench.began == [False], "only what was listed after the loss counts"


async def test_restored_data_leave_the_doubt_whether_older_requests_arrive(bench: _Bench) -> None:
    """For the life of the process: a request of before may be on its way for long."""
    bench.sync.restored()
    await bench.settle()
    bench.sync.lose()
    await bench.settle()
    assert bench.began == [True, True]


async def test_a_list_that_fails_is_repeated_when_the_part_starts_again() -> None:
    bench = _Bench()
    bench.failures.append(Unavailable(503, "ServiceUnavailable", "no"))
    bench.sync.lose()
    with pytest.raises(Unavailable):
        await bench.keep()
    keeping = asyncio.create_task(bench.keep())
    await bench.settle()
    assert bench.sync.synced
    assert bench.lists == 2
    keeping.cancel()


async def test_what_was_decided_before_a_restore_is_not_asked_for_after_it(bench: _Bench) -> None:
    """I3: a pod whose request had no answer is of an attempt that the restored data do not know.
    Everything is listed again long before the next try."""
    bench.sync.lose()
    await bench.settle()
    job, original = bench.job(), bench.kube.create
    no_answer = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        await no_answer.wait()
        raise Unavailable(503, "ServiceUnavailable", "no answer")

    bench.kube.create = hang
    bench.submit(create_item(job), status_item(job))
    await bench.settle()
    bench.kube.create = original
    bench.sync.restored()
    await bench.settle()
    assert (bench.sync.synced, bench.lists) == (False, 1), "it waits for the request's end"
    no_answer.set()
    await bench.settle()
    assert (bench.sync.synced, bench.lists) == (True, 2)
    assert bench.verbs() == [], "neither the pod again, nor the status after it"
    assert bench.executor.take_results() == {WriteResult.NOT_LEADER: 1}
