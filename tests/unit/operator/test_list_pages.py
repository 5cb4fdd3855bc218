"""The next page of a list is made while the one before is taken in."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gpujob_operator.client.api_errors import Throttled, Unavailable
from gpujob_operator.client.list_pages import PAGE_REPEATS_MAX, SLICE_OBJECTS, ListPages
from tests.harness.clocks import FakeClock

OBJECTS = 3 * SLICE_OBJECTS + 1


class _Server:
    """Pages of numbers. `happened` is what was asked of it and what was taken in, in order."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.limits: list[str] = []
        self.happened: list[str] = []
        self.answers: dict[int, Exception] = {}
        self.hangs_at: int | None = None
        self.given_up = 0

    async def fetch(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        number = int(query.get("continue", "0"))
        self.happened.append(f"asked for {number}")
        self.limits.append(query["limit"])
        if number == self.hangs_at:
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up += 1
        if (error := self.answers.get(number)) is not None:
            raise error
        more = {"continue": str(number + 1)} if number + 1 < self.pages else {}
        objects = [number * OBJECTS + one for one in range(OBJECTS)]
        return {"items": objects, "metadata": {"resourceVersion": "7"} | more}

    def condense(self, manifest: object) -> object:
        assert isinstance(manifest, int)
        page, place = divmod(manifest, OBJECTS)
        if place in (0, OBJECTS - 1):
            self.happened.append(f"{'began' if place == 0 else 'ended'} {page}")
        return -manifest


def _list(server: _Server, clock: FakeClock | None = None) -> ListPages:
    return ListPages(server.fetch, (clock or FakeClock()).sleep, {"labelSelector": "a"}, "pods")


async def test_all_objects_come_in_order() -> None:
    server = _Server(3)
    items, metadata = await _list(server).read(server.condense)
    assert items == [-one for one in range(3 * OBJECTS)]
    assert metadata == {"resourceVersion": "7"}


async def test_a_page_is_asked_for_before_the_one_before_is_taken_in() -> None:
    server = _Server(3)
    await _list(server).read(server.condense)
    assert server.happened == [
        *("asked for 0", "asked for 1", "began 0", "ended 0"),
        *("asked for 2", "began 1", "ended 1", "began 2", "ended 2"),
    ]


async def test_others_have_their_turn_within_a_page() -> None:
    server, turns = _Server(2), 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(count())
    await _list(server).read(server.condense)
    other.cancel()
    assert turns >= OBJECTS // SLICE_OBJECTS


async def test_an_error_of_a_later_page_is_that_of_the_list() -> None:
    server = _Server(3)
    server.answers[1] = Unavailable(0, "BadAnswer", "broken")
    with pytest.raises(Unavailable):
        await _list(server).read(server.condense)
    assert "asked for 2" not in server.happened


async def test_a_page_is_asked_for_again_so_often_in_all() -> None:
    server, clock = _Server(2), FakeClock()
    server.answers[1] = Throttled("slowly", None)
    with pytest.raises(Throttled):
        await _list(server, clock).read(server.condense)
    assert server.happened.count("asked for 1") == 1 + PAGE_REPEATS_MAX
    assert len(clock.slept) == PAGE_REPEATS_MAX


async def test_a_list_that_is_given_up_leaves_no_request_behind() -> None:
    server = _Server(3)
    server.hangs_at = 1
    reading = asyncio.create_task(_list(server).read(server.condense))
    while "asked for 1" not in server.happened or "ended 0" not in server.happened:  # noqa: ASYNC110
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert server.given_up == 1


async def test_an_object_that_cannot_be_taken_in_leaves_no_request_behind() -> None:
    server = _Server(3)
    server.hangs_at = 1

    def fail(manifest: object) -> object:
        raise ValueError(manifest)

    with pytest.raises(ValueError, match="0"):
        await _list(server).read(fail)
    await asyncio.sleep(0)
    assert server.given_up == 1


async def test_a_page_has_as_many_objects_as_the_reader_asks_for() -> None:
    server = _Server(2)
    await ListPages(server.fetch, FakeClock().sleep, {}, "pods", 50).read(server.condense)
    assert server.limits == ["50", "50"]
