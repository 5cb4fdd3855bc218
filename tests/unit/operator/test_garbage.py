"""Garbage of small clusters, which make too few objects for Python to look for any."""

import asyncio
import gc
import weakref
from collections.abc import Generator

import pytest

from gpujob_operator.garbage import (
    COLLECTION_SECONDS,
    COLLECTIONS_UNTIL_OLD,
    collect_regularly,
    collect_seldom,
)


class _Ring:
    """Holds itself, so that only a collection of garbage finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thresholds() -> Generator[None]:
    """The operator's; after the test, they are what they were before."""
    before = gc.get_threshold()
    collect_seldom()
    yield
    gc.set_threshold(*before)


class _Minutes:
    """Each `sleep` lasts until the test says that a minute has passed."""

    def __init__(self) -> None:
        self._passed = asyncio.Semaphore(0)
        self._begun = asyncio.Semaphore(0)
        self.asked: set[float] = set()

    async def sleep(self, seconds: float) -> None:
        self.asked.add(seconds)
        self._begun.release()
        await self._passed.acquire()

    async def begin(self) -> None:
        await self._begun.acquire()

    async def pass_one(self) -> None:
        self._passed.release()
        await self._begun.acquire()


async def test_young_garbage_goes_within_a_minute() -> None:
    minutes = _Minutes()
    collecting = asyncio.create_task(collect_regularly(minutes.sleep))
    await minutes.begin()
    ring = weakref.ref(_Ring())
    assert ring() is not None
    await minutes.pass_one()
    assert ring() is None
    assert minutes.asked == {COLLECTION_SECONDS}
    collecting.cancel()


async def test_old_garbage_goes_within_half_an_hour() -> None:
    minutes = _Minutes()
    collecting = asyncio.create_task(collect_regularly(minutes.sleep))
    await minutes.begin()
    old = _Ring()
    ring = weakref.ref(old)
    for _ in range(2):
        await minutes.pass_one()
    del old
    await minutes.pass_one()
    assert ring() is not None, "the test's garbage is young"
    for _ in range(COLLECTIONS_UNTIL_OLD):
        await minutes.pass_one()
    assert ring() is None
    collecting.cancel()
