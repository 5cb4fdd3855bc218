"""Reads a list in pages. The API server prepares the next page while one is processed.

A new leader decides nothing before ten thousand jobs and their pods are listed. The API server
takes about as long for a page as the operator does, and neither waits for the other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from gpujob_operator.client.api_errors import Throttled, TooLarge, Unavailable

PAGE_OBJECTS = 500
# How often pages are requested again if the server asks to slow down.
PAGE_REPEATS_MAX = 5
# Objects of a page that are processed at a time. Other tasks run in between.
SLICE_OBJECTS = 50

# Sends a request with these parameters. Raises `ApiError`.
Fetch = Callable[[Mapping[str, str]], Awaitable[Mapping[str, Any]]]


class ListPages:
    """One list. `what` names it in errors."""

    def __init__(
        self,
        fetch: Fetch,
        sleep: Callable[[float], Awaitable[None]],
        selectors: Mapping[str, str],
        what: str,
        page_objects: int = PAGE_OBJECTS,
    ) -> None:
        self._fetch = fetch
        self._sleep = sleep
        self._selectors = selectors
        self._what = what
        self._limit = page_objects
        self._repeats = 0

    async def read(
        self, condense: Callable[[object], object]
    ) -> tuple[list[Any], Mapping[str, Any]]:
        """Returns the result of `condense` for each object, and the metadata of the last page.

        Raises `ApiError`.
        """
        items: list[Any] = []
        page = await self._page("")
        while True:
            objects, metadata = self._content(page)
            token = metadata.get("continue")
            if not token:
                items += map(condense, objects)
                return items, metadata
            following = asyncio.ensure_future(self._page(str(token)))
            try:
                await _take(objects, condense, items)
                page = await following
            finally:
                following.cancel()

    async def _page(self, token: str) -> Mapping[str, Any]:
        """Fetches a page. Pages get smaller if objects are large.

        If the server asks to slow down, only pages after the first are retried, so that the pages
        already read are not lost.
        """
        where = {"continue": token} if token else {}
        while True:
            try:
                return await self._fetch({**self._selectors, **where, "limit": str(self._limit)})
            except TooLarge:
                if self._limit == 1:
                    raise
                self._limit = max(1, self._limit // 8)
            except Throttled as error:
                self._repeats += 1
                if not token or self._repeats > PAGE_REPEATS_MAX:
                    raise
                await self._sleep(error.pause_seconds)

    def _content(self, page: Mapping[str, Any]) -> tuple[list[object], Mapping[str, Any]]:
        found, metadata = page.get("items") or [], page.get("metadata") or {}
        if not isinstance(found, list) or not isinstance(metadata, dict):
            raise Unavailable(0, "BadAnswer", f"the list of {self._what} is not a list")
        return cast("list[object]", found), cast("Mapping[str, Any]", metadata)


async def _take(
    objects: list[object], condense: Callable[[object], object], items: list[Any]
) -> None:
    """Processes the objects of a page slice by slice. The request for the next page is
    sent first.
    """
    for start in range(0, len(objects), SLICE_OBJECTS):
        await asyncio.sleep(0)
        items += map(condense, objects[start : start + SLICE_OBJECTS])
