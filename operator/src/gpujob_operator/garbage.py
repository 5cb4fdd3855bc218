"""When Python collects garbage in a process with a million objects, and when free memory is
returned to the system.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Awaitable, Callable

# Number of newly created live objects that starts a collection.
COLLECTION_OBJECTS = 50_000
# Period of collections. A small cluster needs half an hour to create that many objects, and their
# garbage would stay that long.
COLLECTION_SECONDS = 60.0
# Fraction of the time for collections that include old objects. Everything else waits during such a
# collection. It takes longer the more objects were created since this process leads.
OLD_TIME_FRACTION = 1 / 2000
# Delay after the first cycle until long-lived objects are excluded. Excluding them takes half a
# second in a large cluster, and the first cycle's decisions must not wait for it.
SPARE_SECONDS = 5.0
_YOUNG, _OLD = 1, 2


def collect_seldom() -> None:
    """Collects garbage rarely instead of every 700 objects.

    The first snapshot of a large cluster has a million objects that all stay.
    """
    gc.set_threshold(COLLECTION_OBJECTS)


def collect_later() -> None:
    """Does the same as `collect_seldom`, but collection begins only with `spare_later`.

    Lists leave no garbage, and looking for it would add a fifth to their time. `collect_regularly`
    also collects before that.
    """
    collect_seldom()
    gc.disable()


def spare_from_collection() -> None:
    """Excludes long-lived API objects from garbage collection.

    They have no cycles. Scanning a hundred thousand of them again would delay a cycle on a large
    cluster by half a second.
    """
    gc.collect()
    gc.freeze()


def spare_later() -> None:
    """Calls `spare_from_collection` after `SPARE_SECONDS`. Garbage is collected from then on.

    Call it in the event loop.
    """

    def spare() -> None:
        spare_from_collection()
        gc.enable()

    asyncio.get_running_loop().call_later(SPARE_SECONDS, spare)


def give_back() -> None:
    """Returns unused pages to the system.

    By itself, glibc only returns pages at the end of its heap, and a small object there can hold
    them back. Nothing happens with other libraries, which have no such function.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def collect_regularly(
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Collects garbage every minute until cancelled, however few objects were created.

    `clock` is in seconds.
    """
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
