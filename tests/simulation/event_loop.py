"""The asyncio event loop of one simulated process: its time is virtual, its order is fixed."""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

from tests.simulation.clock import Clock

# What a killed process may still do while its tasks are taken apart.
LAST_STEPS_MAX = 100_000


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks off the simulation's clock. It can be paused and killed, as a process can.

    `failed` is told of what no task catches.
    """

    def __init__(self, clock: Clock, failed: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._failed = failed
        self._paused_until = 0.0
        # Of all pauses, to their ends.
        self._paused_seconds = 0.0
        self._killed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last: deque[asyncio.Handle] = deque()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, SIGCONT: everything that was to happen happens afterwards."""
        begins, ends = self._clock.now, self._clock.now + seconds
        self._paused_seconds += ends - max(begins, self._paused_until)
        self._paused_until = ends

    @property
    def awake_seconds(self) -> float:
        """Virtual time without the pauses."""
        left = max(0.0, self._paused_until - self._clock.now)
        return self._clock.now - (self._paused_seconds - left)

    @property
    def paused(self) -> bool:
        return self._paused_until > self._clock.now

    def kill(self) -> None:
        """SIGKILL: nothing happens any more. The tasks are taken apart without an effect."""
        if not self._killed:
            self._killed = True
            self._clock.after(0.0, self._take_apart)

    def close(self) -> None:
        self._killed = True
        self._take_apart()

    def _take_apart(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for _ in range(LAST_STEPS_MAX):
            if not self._last:
                return
            self._run_now(self._last.popleft())
        raise AssertionError("a killed process does not end")

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._clock.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        made: Coroutine[Any, Any, Any] = coro
        task = asyncio.Task(made, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._killed:
            self._last.append(handle)
        else:
            self._put(0.0, handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._put(when - self._clock.now, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._killed:
            self._failed(error or RuntimeError(context.get("message", "")))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: a handle that was cancelled does nothing when its time comes."""

    def _put(self, seconds: float, handle: asyncio.Handle) -> None:
        self._clock.after(seconds, partial(self._run, handle))

    def _run(self, handle: asyncio.Handle) -> None:
        if self._killed or handle.cancelled():
            return
        left = self._paused_until - self._clock.now
        if left > 0:
            self._put(left, handle)
        else:
            self._run_now(handle)

    def _run_now(self, handle: asyncio.Handle) -> None:
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)
