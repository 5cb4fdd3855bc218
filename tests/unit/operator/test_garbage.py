"""Garbage of small clusters, which make too few objects for Python to look for any."""

import asyncio
import ctypes
import gc
import os
import weakref
from collections.abc import Generator
from pathlib import Path

import pytest

from gpujob_operator.garbage import (
    COLLECTION_OBJECTS,
    COLLECTION_SECONDS,
    OLD_TIME_FRACTION,
    SPARE_SECONDS,
    collect_later,
    collect_regularly,
    collect_seldom,
    give_back,
    spare_later,
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
    gc.enable()
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
    collecting = asyncio.create_task(collect_regularly(minutes.sleep, lambda: -1.0))
    await minutes.begin()
    ring = weakref.ref(_Ring())
    assert ring() is not None
    await minutes.pass_one()
    assert ring() is None
    assert minutes.asked == {COLLECTION_SECONDS}
    collecting.cancel()


async def test_old_garbage_of_a_small_process_goes_within_minutes() -> None:
    minutes = _Minutes()
    collecting = asyncio.create_task(collect_regularly(minutes.sleep))
    await minutes.begin()
    old = _Ring()
    ring = weakref.ref(old)
    gc.collect()
    del old
    gc.collect(1)
    assert ring() is not None, "the test's garbage is young"
    await minutes.pass_one()
    assert ring() is None
    collecting.cancel()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.01, [*range(1, 41)]),  # every minute
        (0.1, [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]),
        (1.0, [1, 35]),  # a million objects
    ],
)
async def test_old_objects_take_a_small_part_of_the_time(
    seconds: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`expected`: the minutes in which they are looked at."""
    minutes, now, found = _Minutes(), 0.0, list[int]()

    def collect(generation: int) -> None:
        nonlocal now
        if generation == 2:
            now += seconds
            found.append(int(now // COLLECTION_SECONDS))

    monkeypatch.setattr(gc, "collect", collect)
    collecting = asyncio.create_task(collect_regularly(minutes.sleep, lambda: now))
    await minutes.begin()
    for _ in range(40):
        now += COLLECTION_SECONDS
        await minutes.pass_one()
    assert found == expected
    assert len(found) * seconds <= 2 * OLD_TIME_FRACTION * now
    collecting.cancel()


@pytest.mark.looptime
async def test_the_first_decisions_do_not_wait_until_old_objects_are_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[str]()
    monkeypatch.setattr(gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    spare_later()
    await asyncio.sleep(SPARE_SECONDS - 0.1)
    assert done == []
    await asyncio.sleep(0.2)
    assert done == ["collect", "freeze"]


@pytest.mark.looptime
async def test_no_garbage_is_looked_for_until_old_objects_are_spared() -> None:
    """But for each minute."""
    collect_later()
    assert not gc.isenabled()
    assert gc.get_threshold()[0] == COLLECTION_OBJECTS
    collecting = asyncio.create_task(collect_regularly(clock=lambda: -1.0))
    ring = weakref.ref(_Ring())
    await asyncio.sleep(COLLECTION_SECONDS + 1)
    assert ring() is None
    collecting.cancel()
    spare_later()
    await asyncio.sleep(SPARE_SECONDS + 0.1)
    assert gc.isenabled()
    gc.unfreeze()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
def test_what_is_free_goes_back_to_the_system() -> None:
    """Also below what is still held."""
    blocks = [bytes(2000) for _ in range(32_000)]
    full = _resident_bytes()
    blocks = blocks[::1000]
    give_back()
    assert len(blocks) == 32
    assert _resident_bytes() < full - 32_000_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
