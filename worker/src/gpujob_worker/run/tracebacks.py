"""Takes frames of this package out of the tracebacks that a script's user sees."""

import functools
import os
import traceback
import types
from collections.abc import Generator
from pathlib import Path
from typing import Any

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
