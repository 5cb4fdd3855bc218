"""Runs other code in place of the main program's, without the script noticing.

CPython compiles the main program, raises the audit event "exec" with its code, and runs that. No
Python function is running then, and `__main__` is ready: its `__file__` and `__loader__`,
`sys.argv` and `sys.path` have their final values. An error that an audit hook raises at this event
is handled like an error of the script itself (`sys.excepthook`, `sys.last_value`, the exit code),
and so is SystemExit. A hook can therefore run other code there and end it by SystemExit. This order
is that of CPython 3.9 to 3.14 (`run_mod` in `Python/pythonrun.c`). Only the event is documented. If
it does not occur, the script runs as written.

The hook that runs the script consists of C functions only. A Python function would appear in the
script's tracebacks, and as the caller of its module, which has none. Hooks cannot be removed, and
are called for the script's own events too. Each of the two is therefore an object whose class has a
`__call__` of C without effect, except for the one event.

One thing differs: after an uncaught KeyboardInterrupt Python ends itself by SIGINT, and here with
code 1.
"""

from __future__ import annotations

import sys
from functools import partial
from operator import is_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any


def run_instead(code_instead: Callable[[CodeType, str], CodeType | None]) -> None:
    """Calls `code_instead(code, filename)` once, before the main program runs. None runs the
    program as it is.

    It must not raise. Call this once in a process.
    """
    sys.addaudithook(_Waits(code_instead))
    sys.addaudithook(_Runs())


class _Waits:
    """Waits until the main program is compiled, and prepares `_Runs` for it."""

    def __init__(self, code_instead: Callable[[CodeType, str], CodeType | None]) -> None:
        self._code_instead = code_instead

    def __call__(self, event: str, values: tuple[Any, ...]) -> None:
        if event != "exec" or _is_called_by_python():
            return
        name = getattr(values[0], "co_filename", "")
        if not name or name.startswith("<"):
            return
        _stay_out(_Waits)
        code = self._code_instead(values[0], name)
        if code is not None:
            _Runs.make_ready(code)


class _Runs:
    """Called right after `_Waits`, for the same event."""

    # Hooks, and the script that they call, are not traced otherwise.
    __cantrace__ = True
    __call__: Any = is_  # takes an event and its arguments

    @staticmethod
    def make_ready(code: CodeType) -> None:
        names = sys.modules["__main__"].__dict__
        steps = [partial(_stay_out, _Runs), partial(exec, code, names), partial(_end, names)]
        # A C function of any number of iterables, the first of which makes the steps. From Python
        # 3.14 on `partial` is a descriptor.
        gathered: set[Any] = set()
        _Runs.__call__ = staticmethod(partial(gathered.union, map(partial.__call__, steps)))


def _end(names: dict[str, Any]) -> None:
    """Does what the interpreter does after the script's last line."""
    names.pop("__file__", None)
    names.pop("__cached__", None)
    raise SystemExit(0)


def _stay_out(hook: Any) -> None:
    hook.__call__ = is_


def _is_called_by_python() -> bool:
    """Returns whether there is a Python function below the caller."""
    try:
        sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return False
    return True
