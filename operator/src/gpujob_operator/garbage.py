"""When Python looks for garbage in a process that holds a million objects."""

import gc

# Made and not yet gone, before garbage is looked for.
COLLECTION_OBJECTS = 50_000


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
