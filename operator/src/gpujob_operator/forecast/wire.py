"""A snapshot on its way to the child process, in small parts that do not block the event loop."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, BinaryIO

from gpujob_operator.decide.model.snapshot import Snapshot

# Objects in one part.
PART = 50
# The lists that simulations read. The others are left out.
_LISTS = ("jobs", "pods", "nodes", "gpu_nodes", "queues", "profiles", "volumes")
# Jobs and pods of a snapshot at most. A larger cluster gets no ranges.
OBJECTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Question:
    """A snapshot, its time, and the processor time in which it has to be answered."""

    snapshot: Snapshot
    now: datetime
    seconds_max: float


def is_too_large(snapshot: Snapshot) -> bool:
    return len(snapshot.jobs) + len(snapshot.pods) > OBJECTS_MAX


def parts_of(question: Question) -> Iterator[bytes]:
    """Yields the question in parts, each in about a millisecond."""
    snapshot = question.snapshot
    lists: dict[str, tuple[Any, ...]] = {name: getattr(snapshot, name) for name in _LISTS}
    rest = Snapshot(
        spot_pools=snapshot.spot_pools,
        refused_templates=snapshot.refused_templates,
        configuration=snapshot.configuration,
    )
    sizes = {name: len(objects) for name, objects in lists.items()}
    yield pickle.dumps((replace(question, snapshot=rest), sizes))
    for objects in lists.values():
        for start in range(0, len(objects), PART):
            yield pickle.dumps(objects[start : start + PART])


def read_question(stream: BinaryIO) -> Question:
    """Reads the parts from the operator, which is the only writer of the stream."""
    question, sizes = pickle.load(stream)  # noqa: S301 - the parent process is the only writer
    found: dict[str, tuple[Any, ...]] = {}
    for name, size in sizes.items():
        objects: list[Any] = []
        while len(objects) < size:
            objects += pickle.load(stream)  # noqa: S301
        found[name] = tuple(objects)
    return replace(question, snapshot=replace(question.snapshot, **found))
