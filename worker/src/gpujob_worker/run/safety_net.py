"""What goes wrong in code of the worker stays there: the script runs on as if it were not hooked.

Everything that torch or the interpreter calls goes through one `SafetyNet` a run. The first error
cuts it: from then on every guarded call returns at once, and the report says why.
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
    """In one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class SafetyNet:
    """Guards calls; `cut` after the first one that failed."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._take_off: Callable[[], None] = lambda: None
        self.cut = False

    def when_cut(self, take_off: Callable[[], None]) -> None:
        """`take_off` takes out of the script what was put into it."""
        self._take_off = take_off

    def guard(
        self, call: Callable[..., Any], otherwise: Callable[..., Any] = lambda *_, **__: None
    ) -> Callable[..., Any]:
        """`call`, or what `otherwise` returns for the same arguments once the net is cut.

        What ends the run by intention passes: a memory limit that cannot be kept, and a stop.
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
        """Something failed: everything is taken off, and it is said once."""
        if self.cut:
            return
        self.cut = True
        self.say(f"the worker failed: {kind_and_text(error)}{_place(error)}")
        try:
            self._take_off()
        except Exception as second:
            self._log.note("injection", f"could not be taken off: {kind_and_text(second)}")

    def say(self, reason: str) -> None:
        """Once on standard error, whatever was asked to be explained, and in the report."""
        text = f"{reason}; the script runs as written"
        say(f"gpujob: {ITEM} skipped: {text}")
        self._log.skipped(ITEM, text, aloud=False)
        self._log.said(ITEM)


def attempted(item: str, call: Callable[[], None], log: DecisionLog) -> None:
    """Calls it; where it fails, a line about `item` says so. For the end of a run, whose last
    report depends on none of it.
    """
    try:
        call()
    except Exception as error:
        log.note(item, f"failed at the end of the run: {kind_and_text(error)}", aloud=False)


def _place(error: BaseException) -> str:
    """Where in our code, for whoever mends it."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    if entry is None:
        return ""
    code = entry.tb_frame.f_code
    return f" ({code.co_filename.rpartition('/')[2]}:{entry.tb_lineno})"
