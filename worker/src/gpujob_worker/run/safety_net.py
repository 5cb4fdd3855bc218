"""Keeps errors in the worker's code from the script, which runs on as if it were not hooked.

Everything that torch or the interpreter calls goes through one `SafetyNet` per run. The first error
cuts it. From then on every guarded call returns at once, and the report has the reason.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.failure import MemoryLimitError
from gpujob_worker.run.standard_error import say

ITEM = "everything"
Result = TypeVar("Result")


def kind_and_text(error: BaseException) -> str:
    """Returns the error's type and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class SafetyNet:
    """Guards calls. `cut` is True after the first one that failed."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._take_off: Callable[[], None] = lambda: None
        self.cut = False

    def when_cut(self, take_off: Callable[[], None]) -> None:
        """Sets `take_off`, which removes all hooks from the script."""
        self._take_off = take_off

    def guard(
        self, call: Callable[..., Any], otherwise: Callable[..., Any] = lambda *_, **__: None
    ) -> Callable[..., Any]:
        """Returns `call` guarded. Once the net is cut it returns the result of `otherwise` for the
        same arguments.

        Errors that end the run by intention pass: a memory limit that cannot be kept, and a stop.
        """

        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.cut:
                return otherwise(*args, **kwargs)
            try:
                return call(*args, **kwargs)
            except MemoryLimitError:
                raise
            except Exception as error:
                self.tear(error)
                return otherwise(*args, **kwargs)

        return guarded

    def tear(self, error: BaseException) -> None:
        """Removes all hooks after an error, and logs it once."""
        if self.cut:
            return
        self.cut = True
        self.say(f"the worker failed: {kind_and_text(error)}{_place(error)}")
        try:
            self._take_off()
        except Exception as second:
            self._log.note("injection", f"could not be taken off: {kind_and_text(second)}")

    def say(self, reason: str) -> None:
        """Prints a reason once on standard error, whatever explanations were requested, and reports
        it.
        """
        text = f"{reason}; the script runs as written"
        say(f"gpujob: {ITEM} skipped: {text}")
        self._log.skipped(ITEM, text, aloud=False)
        self._log.said(ITEM)


def attempted(item: str, call: Callable[[], None], log: DecisionLog) -> None:
    """Calls it, and logs an error about `item`. For the end of a run, whose last report depends on
    none of these calls.
    """
    try:
        call()
    except Exception as error:
        log.note(item, f"failed at the end of the run: {kind_and_text(error)}", aloud=False)


def _place(error: BaseException) -> str:
    """Returns the place of the error in our code, for debugging."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    if entry is None:
        return ""
    code = entry.tb_frame.f_code
    return f" ({code.co_filename.rpartition('/')[2]}:{entry.tb_lineno})"
