"""When Python looks for garbage in a process that holds a million objects."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

# Made and not yet gone, before garbage is looked for.
COLLECTION_OBJECTS = 50_000
# A small cluster makes so many in half an hour, and their garbage would lie there as long.
COLLECTION_SECONDS = 60.0
# Every so many times, old objects are looked at, too. Everything else waits meanwhile, the longer
# the more objects came since this process leads.
COLLECTIONS_UNTIL_OLD = 30
_YOUNG, _OLD = 1, 2


def collect_seldom() -> None:
    """Collects garbage rarely instead of every 700 objects: the first snapshot of a large cluster
    has a million objects that all stay.
    """
    gc.set_threshold(COLLECTION_OBJECTS)


def spare_from_collection() -> None:
    """Excludes long-lived API objects from garbage collection. They have no cycles, and scanning a
    hundred thousand of them again would delay a cycle on a large cluster by half a second.
    """
    gc.collect()
    gc.freeze()


async def collect_regularly(sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Collects garbage every minute until cancelled, however few objects were made."""
    while True:
        for generation in [_YOUNG] * (COLLECTIONS_UNTIL_OLD - 1) + [_OLD]:
            await sleep(COLLECTION_SECONDS)
            gc.collect(generation)
