"""The GPUQueues as a tree: the parent of each queue, what it is promised and what it may use.

A queue without a parent is a root. A queue whose parent does not exist, or that is among its own
ancestors, is also a root. It has its own nominal quota and nothing else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue, Quota


class Bounds(NamedTuple):
    """Upper bounds of GPUs and of GPU memory in bytes. None: no bound."""

    gpus: int | None = None
    memory_bytes: int | None = None


class ParentProblem(NamedTuple):
    """Why a queue's parent does not count: the condition's reason, and a message with the next
    step.
    """

    reason: str
    message: str


PARENT_NOT_FOUND, PARENT_CIRCULAR = "ParentNotFound", "ParentCircular"
# Every job has a GPU, so no GPUs admit no job.
_NOTHING = Bounds(0)


@dataclass(slots=True)
class QueueTree:
    """The tree of the queues. Queues that do not exist count as roots."""

    by_name: Mapping[str, GPUQueue]
    # Problems of the queues whose parent does not count.
    problems: dict[str, ParentProblem] = field(init=False)
    _parents: dict[str, str] = field(init=False)
    _children: dict[str, list[str]] = field(init=False)
    _nominal: dict[str, Bounds] = field(init=False)
    _limits: dict[str, Bounds] = field(init=False)
    _rests: dict[str, Bounds] = field(init=False)
    _paths: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __post_init__(self) -> None:
        named = {
            name: queue.spec.parent
            for name, queue in self.by_name.items()
            if queue.spec.parent is not None
        }
        self.problems = _problems(named, self.by_name)
        self._parents = {name: up for name, up in named.items() if name not in self.problems}
        self._children = {}
        for name, parent in sorted(self._parents.items()):
            self._children.setdefault(parent, []).append(name)
        self._nominal = {name: self._nominal_of(queue) for name, queue in self.by_name.items()}
        self._limits = {name: self._limit_of(queue) for name, queue in self.by_name.items()}
        self._rests = {name: self._rest_of(name) for name in self.by_name}

    def parent(self, name: str) -> str | None:
        return self._parents.get(name)

    def children(self, name: str) -> Iterable[str]:
        return self._children.get(name, ())

    def path(self, name: str) -> tuple[str, ...]:
        """Returns the queue, its parent, and so on up to the root."""
        known = self._paths.get(name)
        if known is None:
            found = [name]
            while (parent := self._parents.get(found[-1])) is not None:
                found.append(parent)
            known = self._paths[name] = tuple(found)
        return known

    def nominal(self, name: str) -> Bounds:
        """Returns what the queue and all queues below it may always have.

        A None has no own quota. A queue that was deleted while its jobs run is promised nothing.
        """
        nobody = not self.by_name or name in ("", DEFAULT_QUEUE)
        return self._nominal.get(name, Bounds() if nobody else _NOTHING)

    def limit(self, name: str) -> Bounds:
        """Returns the most that the queue and all queues below it may have.

        That is the nominal quota plus the borrowing limit. Without a borrowing limit, a queue with
        a parent may have all that the parent has, and a root may borrow nothing.
        """
        return self._limits.get(name, Bounds())

    def rest(self, name: str) -> Bounds:
        """Returns what the nominal quotas of the queue's children leave of its own.

        It is for the queue's own jobs and for children without a nominal quota.
        """
        return self._rests.get(name, Bounds())

    def is_overcommitted(self, name: str, kind: int) -> bool:
        """Returns whether the nominal quotas of the children are together more than the queue's."""
        nominal = self.nominal(name)[kind]
        if nominal is None:
            return False
        return sum(self.nominal(child)[kind] or 0 for child in self.children(name)) > nominal

    def is_promised_any(self, name: str) -> bool:
        """Returns whether the queue, or one above it, has a nominal quota."""
        return any(self.nominal(one) != Bounds() for one in self.path(name))

    def _nominal_of(self, queue: GPUQueue) -> Bounds:
        own = _bounds(queue.spec.nominal)
        # Without a parent, there is nothing that the queue could have a part of.
        return _NOTHING if own == Bounds() and queue.metadata.name in self.problems else own

    def _limit_of(self, queue: GPUQueue) -> Bounds:
        name = queue.metadata.name
        nominal, extra = self._nominal[name], _bounds(queue.spec.borrowing_limit)
        if name in self.problems:
            return nominal
        has_parent = name in self._parents
        return Bounds(
            _sum(nominal.gpus, extra.gpus, unlimited=has_parent),
            _sum(nominal.memory_bytes, extra.memory_bytes, unlimited=has_parent),
        )

    def _rest_of(self, name: str) -> Bounds:
        promised = [self._nominal[child] for child in self.children(name)]
        gpus, memory_bytes = self._nominal[name]
        return Bounds(
            _less(gpus, (one.gpus or 0 for one in promised)),
            _less(memory_bytes, (one.memory_bytes or 0 for one in promised)),
        )


def _problems(
    parents: Mapping[str, str], by_name: Mapping[str, GPUQueue]
) -> dict[str, ParentProblem]:
    effect = "until then the queue has what its own spec.nominal says and borrows nothing"
    found: dict[str, ParentProblem] = {}
    for name, parent in parents.items():
        if parent not in by_name:
            text = f"spec.parent: GPUQueue {parent!r} does not exist: create it or change the field"
            found[name] = ParentProblem(PARENT_NOT_FOUND, f"{text}; {effect}")
    for circle in _circles(parents):
        turn = " -> ".join((*circle, circle[0]))
        for name in circle:
            text = f"spec.parent: {parents[name]}: the parents go in a circle, {_short(turn)}"
            text += ": change spec.parent of one of them"
            found[name] = ParentProblem(PARENT_CIRCULAR, f"{text}; {effect}")
    return found


def _circles(parents: Mapping[str, str]) -> list[list[str]]:
    """Returns the groups of queues that are among their own ancestors."""
    found: list[list[str]] = []
    seen: set[str] = set()
    for start in sorted(parents):
        path: dict[str, None] = {}
        name: str | None = start
        while name is not None and name not in seen and name not in path:
            path[name] = None
            name = parents.get(name)
        if name is not None and name in path:
            way = list(path)
            found.append(way[way.index(name) :])
        seen.update(path)
    return found


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _bounds(quota: Quota) -> Bounds:
    memory = quota.gpu_memory
    return Bounds(quota.gpus, memory.bytes if memory is not None else None)


def _sum(nominal: int | None, extra: int | None, *, unlimited: bool) -> int | None:
    if nominal is None or (extra is None and unlimited):
        return None
    return nominal + (extra or 0)


def _less(whole: int | None, parts: Iterable[int]) -> int | None:
    return None if whole is None else max(whole - sum(parts), 0)
