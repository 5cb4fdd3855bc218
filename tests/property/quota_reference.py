"""The rule of docs/design/0027, of GPUs alone, written down as slowly as it is said."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations

from gpujob_api.gpuqueue import GPUQueue

# What each queue's own jobs use.
Use = Mapping[str, int]


@dataclass(frozen=True)
class Reference:
    queues: Mapping[str, GPUQueue]

    # -- the tree

    def parent(self, name: str) -> str | None:
        """None also if the parent does not exist, or the parents go in a circle. A queue that was
        deleted has none either."""
        if name not in self.queues:
            return None
        parent = self.queues[name].spec.parent
        return None if parent not in self.queues or self.is_in_circle(name) else parent

    def is_in_circle(self, name: str) -> bool:
        at: str | None = self.queues[name].spec.parent
        for _ in self.queues:
            if at == name:
                return True
            queue = self.queues.get(at) if at is not None else None
            at = queue.spec.parent if queue is not None else None
        return False

    def is_broken(self, name: str) -> bool:
        return self.queues[name].spec.parent is not None and self.parent(name) is None

    def up(self, name: str) -> list[str]:
        parent = self.parent(name)
        return [name] if parent is None else [name, *self.up(parent)]

    def children(self, name: str) -> list[str]:
        return [one for one in self.queues if self.parent(one) == name]

    def total(self, name: str, use: Use) -> int:
        return sum(gpus for one, gpus in use.items() if name in self.up(one))

    # -- what is promised and allowed

    def nominal(self, name: str) -> int | None:
        if name not in self.queues:
            return 0
        nominal = self.queues[name].spec.nominal.gpus
        return 0 if nominal is None and self.is_broken(name) else nominal

    def most(self, name: str) -> float:
        nominal, extra = self.nominal(name), self.queues[name].spec.borrowing_limit.gpus
        if self.is_broken(name):
            return nominal or 0
        if nominal is None or (extra is None and self.parent(name) is not None):
            return float("inf")
        return nominal + (extra or 0)

    def rest(self, name: str) -> float:
        nominal = self.nominal(name)
        if nominal is None:
            return float("inf")
        return max(nominal - sum(self.nominal(one) or 0 for one in self.children(name)), 0)

    def in_rest(self, name: str, use: Use) -> int:
        loose = [one for one in self.children(name) if self.nominal(one) is None]
        return use.get(name, 0) + sum(self.total(one, use) for one in loose)

    # -- the questions

    def is_allowed(self, name: str, gpus: int, use: Use) -> bool:
        return all(self.total(one, use) + gpus <= self.most(one) for one in self.up(name))

    def is_entitled(self, name: str, gpus: int, use: Use) -> bool:
        """Everybody beside the way up is cut to what is promised; then the job must be within all
        that is promised along the way."""
        way = self.up(name)
        brought, below = gpus, None
        for one in way:
            firm = loose = 0
            for child in self.children(one):
                nominal = self.nominal(child)
                if child == below:
                    continue
                if nominal is None:
                    loose += self.total(child, use)
                else:
                    firm += min(nominal, self.total(child, use))
            loose += use.get(one, 0)
            if below is None or self.nominal(below) is None:
                if loose + brought > self.rest(one):
                    return False
                brought += loose + firm
            else:
                brought += firm + int(min(loose, self.rest(one)))
            whole = self.nominal(one)
            if whole is not None and brought > whole:
                return False
            below = one
        return True

    def is_promised_any(self, name: str) -> bool:
        return any(self.nominal(one) is not None for one in self.up(name))

    def borrows(self, member: str, of: str | None, use: Use) -> bool:
        """Whether a child of a queue, or the queue's own jobs (`member` is `of`), have more than is
        promised to them."""
        nominal = self.nominal(member)
        if member != of and nominal is not None:
            return self.total(member, use) > nominal
        holds = use.get(member, 0) if member == of else self.total(member, use)
        return of is not None and holds > 0 and self.in_rest(of, use) > self.rest(of)

    def gives_back(self, name: str, to: str, use: Use) -> bool:
        """Whether one of the queue's jobs may be stopped for an entitled job of the other."""
        if name == to:
            return False
        way = [one for one in reversed(self.up(name)) if one not in self.up(to)]
        steps = [(one, self.parent(one)) for one in way] + [(name, name)]
        first, *further = steps
        if not self.borrows(*first, use):
            return False
        for member, of in further:
            assert of is not None
            members = [*((one, of) for one in self.children(of)), (of, of)]
            anybody = any(self.borrows(one, at, use) for one, at in members)
            if anybody and not self.borrows(member, of, use):
                return False
        return True

    def may_all_go(self, victims: Iterable[tuple[str, int]], to: str, use: Use) -> bool:
        """Whether there is an order in which each may be stopped, after the ones before it."""
        return any(self._in_turn(order, to, use) for order in permutations(victims))

    def _in_turn(self, order: Iterable[tuple[str, int]], to: str, use: Use) -> bool:
        left = dict(use)
        for name, gpus in order:
            if not self.gives_back(name, to, left):
                return False
            left[name] -= gpus
        return True
