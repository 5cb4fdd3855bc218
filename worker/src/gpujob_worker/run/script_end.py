"""How the script ended, as far as a process learns it of itself, for its last report.

The interpreter tells an error that nobody caught. An exit code it tells nobody: one is known where
the script called `sys.exit`.
"""

import functools
import sys
from types import TracebackType
from typing import Any, NoReturn

from gpujob_worker.run.tracebacks import clean_traceback, hide_own_frames


class ScriptEnd:
    """Watches for the script's end without having a part in it."""

    def __init__(self) -> None:
        self._exit: SystemExit | None = None

    def watch(self) -> None:
        """From now on; what the interpreter prints of an error shows the script's frames alone."""
        plain_exit, plain_hook = sys.exit, sys.excepthook

        @functools.wraps(plain_exit)
        def exit(status: Any = None, /) -> NoReturn:  # noqa: A001 - the standard library's name
            self._exit = SystemExit(status)
            plain_exit(status)

        def show(
            kind: type[BaseException], error: BaseException, entries: TracebackType | None
        ) -> None:
            clean_traceback(error)
            plain_hook(kind, error, error.__traceback__ if entries is not None else None)

        sys.exit, sys.excepthook = exit, show
        hide_own_frames()

    @property
    def error(self) -> BaseException | None:
        """What ended the script; None for a clean end, or one that left no trace."""
        found: Any = getattr(sys, "last_value", None)
        # In a child of multiprocessing, whose errors are printed by its parent's library.
        found = found or sys.exc_info()[1]
        if isinstance(found, SystemExit) and found.code == 1 and found.__context__ is not None:
            found = found.__context__
        return found or self._exit
