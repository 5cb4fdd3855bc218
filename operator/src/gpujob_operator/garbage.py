"""When Python looks for garbage in a process that holds a million objects, and when what is free
goes back to the system.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Awaitable, Callable

# Made and not yet gone, before garbage is looked for.
COLLECTION_OBJECTS = 50_000
# A small cluster makes so many in half an hour, and their garbage would lie there as long.
COLLECTION_SECONDS = 60.0
# Of the time, to look at old objects, too. Everything else waits meanwhile, the longer the more
# objects came since this process leads.
OLD_TIME_FRACTION = 1 / 2000
# After the first cycle, before long-lived objects are excluded: that takes half a second in a large
# cluster, and what the first cycle decided is not to wait for it.
SPARE_SECONDS = 5.0
_YOUNG, _OLD = 1, 2


def collect_seldom() -> None:
    """Collects garbage rarely instead of every 700 objects: the first snapshot of a large cluster
    has a million objects that all stay.
    """
    gc.set_threshold(COLLECTION_OBJECTS)


def collect_later() -> None:
    """As `collect_seldom`, but begins with `spare_later`: lists leave no garbage, and to look for
    some would take a fifth of the time that they take. `collect_regularly` collects before, too.
    """
    collect_seldom()
    gc.disable()


def spare_from_collection() -> None:
    """Excludes long-lived API objects from garbage collection. They have no cycles, and scanning a
    hundred thousand of them again would delay a cycle on a large cluster by half a second.
    """
    gc.collect()
    gc.freeze()


def spare_later() -> None:
    """`spare_from_collection` in a moment. Garbage is collected from then on. Call it in the event
    loop.
    """

    def spare() -> None:
        spare_from_collection()
        gc.enable()

    asyncio.get_running_loop().call_later(SPARE_SECONDS, spare)


def give_back() -> None:
    """Gives the system the pages in which nothing is used any more. By itself, glibc gives those at
    the end of its heap only, and what is held there may be small. Other libraries have no such
    function, and nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def collect_regularly(
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Collects garbage every minute until cancelled, however few objects were made. `clock` is in
    seconds."""
    old_from = 0.0
    while True:
        await sleep(COLLECTION_SECONDS)
        began = clock()
        if began < old_from:
            gc.collect(_YOUNG)
        else:
            gc.collect(_OLD)
            old_from = began + (clock() - began) / OLD_TIME_FRACTION
        give_back()
