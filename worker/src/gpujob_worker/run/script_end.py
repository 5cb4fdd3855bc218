"""Records how the script ended, for its last report.

The interpreter exposes an error that was not caught. It does not expose an exit code, which is only
known if the script called `sys.exit`.
"""

import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Generator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

# The code that runs a child of multiprocessing and prints its error.
_RUNS_CHILD = getattr(getattr(BaseProcess, "_bootstrap", None), "__code__", None)


class Exited(SystemExit):
    """An exit by `sys.exit`, with what the script printed about it, as far as that is known."""

    def __init__(self, status: object, words: str) -> None:
        super().__init__(status)
        self.words = words


def _words_about_exit() -> str:
    """Returns the message of a parser that ends the script, or the error that the script handles.

    `argparse` only prints its message. Other parsers raise an error and catch it themselves.
    """
    handled = sys.exc_info()[1]
    try:
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        if caller.f_globals.get("__name__") == "argparse":
            return str(caller.f_locals.get("message") or "").strip()
        return "" if handled is None else f"{type(handled).__name__}: {handled}"
    except Exception:
        # An error that cannot be printed must not change the exit.
        return "" if handled is None else type(handled).__name__


class ScriptEnd:
    """Watches for the script's end without affecting it."""

    def __init__(self) -> None:
        self._exit: SystemExit | None = None
        self._of_child: BaseException | None = None
        # Whether a stop was requested, now and when the end began.
        self.stops: Callable[[], bool] = lambda: False
        self._stopped: bool | None = None

    def watch(self) -> None:
        """Watches from now on. Tracebacks that the interpreter prints then show the script's frames
        only.
        """
        plain_exit, plain_hook = sys.exit, sys.excepthook

        @functools.wraps(plain_exit)
        def exit(status: Any = None, /) -> NoReturn:  # noqa: A001 - the standard library's name
            self._exit, self._stopped = Exited(status, _words_about_exit()), self.stops()
            plain_exit(status)

        def show(
            kind: type[BaseException], error: BaseException, entries: TracebackType | None
        ) -> None:
            self._stopped = self.stops()
            clean_traceback(error)
            plain_hook(kind, error, error.__traceback__ if entries is not None else None)

        sys.exit, sys.excepthook = exit, show
        self._watch_child()
        hide_own_frames()

    def _watch_child(self) -> None:
        """Records the error of a child of multiprocessing, which Python 3.13 and later drop before
        its end.
        """
        plain_print = traceback.print_exc

        @functools.wraps(plain_print)
        def print_exc(*values: Any, **named: Any) -> None:
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if caller.f_code is _RUNS_CHILD:
                self._of_child, self._stopped = sys.exc_info()[1], self.stops()
            plain_print(*values, **named)

        traceback.print_exc = print_exc

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested when the end began. Later steps may take long."""
        return self.stops() if self._stopped is None else self._stopped

    @property
    def error(self) -> BaseException | None:
        """The error that ended the script. None for a clean end, or one that left no trace."""
        found: Any = getattr(sys, "last_value", None)
        # A child of multiprocessing has its error here, and its parent's library prints it.
        found = found or sys.exc_info()[1] or self._of_child
        if isinstance(found, SystemExit) and found.code == 1 and found.__context__ is not None:
            found = found.__context__
        return found or self._exit


_OWN_DIRECTORY = str(Path(__file__).resolve().parents[1]) + os.sep
# The functions that list a traceback's frames, for callers and for printing.
_WALKERS = ("walk_tb", "_walk_tb_with_full_positions")


def clean_traceback(error: BaseException) -> None:
    """Removes frames of this package from an error's tracebacks."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        pending += [current.__cause__, current.__context__]


def _without_ours(entries: types.TracebackType | None) -> types.TracebackType | None:
    kept: list[types.TracebackType] = []
    while entries is not None:
        name = entries.tb_frame.f_code.co_filename
        if not name.startswith(_OWN_DIRECTORY):
            kept.append(entries)
        entries = entries.tb_next
    cleaned: types.TracebackType | None = None
    for entry in reversed(kept):
        cleaned = types.TracebackType(cleaned, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return cleaned


def hide_own_frames() -> None:
    """Makes errors that the script catches and prints or logs show its own frames only.

    A traceback has all frames before the script gets it. They are left out in `traceback`, which
    `logging` uses too.
    """
    for name in _WALKERS:
        plain: Any = getattr(traceback, name, None)
        if plain is None or hasattr(plain, "__wrapped__"):
            continue

        @functools.wraps(plain)
        def walk(entry: Any, _plain: Any = plain) -> Generator[Any]:
            for found in _plain(entry):
                if not found[0].f_code.co_filename.startswith(_OWN_DIRECTORY):
                    yield found

        setattr(traceback, name, walk)
