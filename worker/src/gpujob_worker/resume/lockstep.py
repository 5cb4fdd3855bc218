"""Makes all processes that train together save or leave at the same safe point.

A process must not leave on a stop alone, because the others would wait for it in their next
exchange of gradients. It writes a plan for a later safe point into the store of the process group.
Every process reads the plan at each of its safe points. Gradients are exchanged in every step, so
no process is more than `STEPS_AHEAD` ahead of another. All therefore see the plan before its safe
point.
"""

import collections
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch

from gpujob_worker.checkpoint.ballot import KeyValues

# On a GPU a process may launch steps before the earlier ones have run. It waits for the step that
# is this many behind. On a CPU a step is over when its gradients are exchanged.
STEPS_AHEAD = 4
_STOP_WANTED = "stop wanted"


class Order(Enum):
    """The action of a process at a safe point."""

    GO_ON = "go on"
    SAVE = "save"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Wish:
    """What this process would do here on its own. `seconds` are left for a stop."""

    order: Order = Order.GO_ON
    seconds: float = 0.0
    reason: str = ""


class Pace(Protocol):
    """Decides the action at each safe point."""

    # Whether checkpoints are due by this process's clock.
    leads: bool
    # Why the processes cannot be kept together, or None. Nothing is saved any more then.
    lost: str | None

    def passes(self, wish: Wish) -> Order:
        """Returns the action. Called once at each safe point."""
        ...


class Alone:
    """A single process, whose wishes are carried out."""

    leads = True
    lost: str | None = None

    def passes(self, wish: Wish) -> Order:
        return wish.order


class Lockstep:
    """One of several processes. `on_stop(reason, seconds)` is called when another process was
    stopped.
    """

    def __init__(
        self,
        values: KeyValues,
        *,
        leads: bool,
        on_stop: Callable[[str, float], None],
        ahead: "StepsAhead | None" = None,
    ) -> None:
        self.leads = leads
        self.lost: str | None = None
        self._values = values
        self._on_stop = on_stop
        self._ahead = ahead or StepsAhead()
        self._at = self._plans = 0
        self._wants_stop = False
        self._pending: dict[str, Any] | None = None

    def passes(self, wish: Wish) -> Order:
        """Returns the action of all processes here. A wish is fulfilled at a later safe point, by
        all.
        """
        self._at += 1
        if self.lost is not None:
            return Order.STOP if wish.order is Order.STOP else Order.GO_ON
        self._ahead.hold()
        try:
            return self._passes(wish)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            self.lost = f"the process group's store is gone: {error}"[:500]
            return Order.STOP if wish.order is Order.STOP else Order.GO_ON

    def _passes(self, wish: Wish) -> Order:
        order = self._due()
        if order is Order.STOP or wish.order is Order.GO_ON:
            return order
        if wish.order is Order.STOP:
            self._want_stop()
        elif order is Order.SAVE or self._values.check([_STOP_WANTED]):
            return order
        if self._pending is None:
            self._propose(wish)
        return order

    def _want_stop(self) -> None:
        """Keeps a process that is ahead from planning one checkpoint after another."""
        if not self._wants_stop:
            self._wants_stop = True
            self._values.compare_set(_STOP_WANTED, "", "1")

    def _due(self) -> Order:
        """Returns a plan's action for this safe point."""
        if self._pending is None:
            self._look()
        if self._pending is None or self._pending["at"] > self._at:
            return Order.GO_ON
        plan, self._pending = self._pending, None
        self._plans += 1
        order = Order(plan["order"])
        if plan["at"] < self._at:
            self.lost = (
                f"the processes do not step together: a plan was for safe point {plan['at']}, and"
                f" this one is at {self._at}"
            )
        return order

    def _look(self) -> None:
        key = self._key
        if self._values.check([key]):
            self._adopt(self._values.get(key))

    def _propose(self, wish: Wish) -> None:
        """Writes a plan. The first plan written counts, whichever process wrote it."""
        plan = {
            "order": wish.order.value,
            "at": self._at + 1 + self._ahead.steps,
            "seconds": wish.seconds,
            "reason": wish.reason,
        }
        self._adopt(self._values.compare_set(self._key, "", json.dumps(plan)))

    def _adopt(self, text: bytes) -> None:
        plan = json.loads(text)
        if plan["order"] == Order.STOP.value:
            self._on_stop(str(plan["reason"]), float(plan["seconds"]))
        self._pending = plan

    @property
    def _key(self) -> str:
        return f"plan/{self._plans}"


class StepsAhead:
    """Keeps the process from launching more than this many steps ahead of the GPU."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self.steps = STEPS_AHEAD if self._device is not None else 0
        self._events: collections.deque[Any] = collections.deque()

    def hold(self) -> None:
        """Waits for the end of the step that is `steps` before the last one."""
        if self._device is None:
            return
        event: Any = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        while len(self._events) > self.steps:
            self._events.popleft().synchronize()
