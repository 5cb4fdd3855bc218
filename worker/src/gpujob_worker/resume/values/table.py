"""The values of a script's variables as plain values and tensors, and how they are restored.

Everything that can be reached from the variables is one table of nodes. An object that is reached
twice is one node, so that shared objects are shared again. Values are restored into existing
objects if there are any, because others may reference them.

Values that were large before the first step and are unchanged are not saved. The script makes them
again, and their hashes are compared. A value that cannot be read is a reason not to save at all.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.values import (
    constants,
    containers,
    functions_and_classes,
    iterators,
    loaders,
    modules_and_optimizers,
    objects,
    random_generators,
    streams,
    tensors_and_arrays,
)
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.values.family import KIND, Encoded, joined
from gpujob_worker.resume.values.kinds import CONTAINERS
from gpujob_worker.resume.values.made_objects import MadeObjects
from gpujob_worker.resume.values.modules_and_optimizers import read_kept, read_separate
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer

# Objects are the last, because they are all other values.
EVERY_FAMILY = joined(
    each.FAMILY
    for each in (
        tensors_and_arrays,
        modules_and_optimizers,
        containers,
        constants,
        functions_and_classes,
        random_generators,
        streams,
        iterators,
        loaders,
        objects,
    )
)
# Node types that need no object of the script.
_SELF_CONTAINED = {"tensor", "memory", "array", "made constant", "tuple", *CONTAINERS}
_CONTAINED_MAX = 10_000


def reader_of(
    made: Sequence[Any],
    baseline: Baseline,
    lost: Sequence[Any] = (),
    *,
    passes: Passes | None = None,
    first: bool = False,
) -> Reader:
    """Returns a reader with an empty table.

    `made` are the script's modules, optimizers and the like, which are saved separately. `lost` are
    those that a resume does not make again. With `first`, only large values are read, into the
    baseline.
    """
    objects_made = MadeObjects(made, lost)
    return Reader(EVERY_FAMILY, read_separate, objects_made, baseline, passes=passes, first=first)


def restorer_of(
    nodes: Sequence[Any],
    made: Sequence[Any],
    passes: Passes,
    moved: tuple[str, str] = ("", ""),
    adopts: Callable[[Any], None] = lambda made: None,
) -> Restorer:
    """Returns a restorer of the table of a reader. See `Restorer`."""
    return Restorer(EVERY_FAMILY, nodes, made, passes, moved, adopts)


def see_kept(made: Sequence[Any], baseline: Baseline) -> None:
    """Records values of modules and optimizers, besides their states, that only the script can
    make.

    Large values are not recorded, because a forward pass may have made them and a resume makes
    none.
    """
    seen = Baseline()
    reader = reader_of(made, seen, first=True)
    for each in made:
        with contextlib.suppress(UnsavableError, RecursionError):
            read_kept(reader, [each])
        reader.forget(0)
    baseline.made |= seen.made


def is_self_contained(encoded: Encoded, nodes: Sequence[Any]) -> bool:
    """Returns whether a value can be made without any object of the script."""
    waiting, seen = [encoded], set[int]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, tuple) and len(each) == 2 and each[0] == "r":
            node = nodes[each[1]]
            if node[KIND] not in _SELF_CONTAINED or "of" in node or len(seen) > _CONTAINED_MAX:
                return False
            if each[1] not in seen:
                seen.add(each[1])
                waiting.append({name: value for name, value in node.items() if name != "data"})
        elif isinstance(each, (list, tuple)):
            waiting += each
    return True
