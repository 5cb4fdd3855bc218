"""Takes frames of this package out of the tracebacks that a script's user sees."""

import functools
import os
import traceback
import types
from collections.abc import Generator
from pathlib import Path
from typing import Any

_OWN_DIRECTORY = str(Path(__file__).resolve().parents[1]) + os.sep
# What lists the frames of a traceback, for those who ask and for those who print.
_WALKERS = ("walk_tb", "_walk_tb_with_full_positions")


def clean_traceback(error: BaseException) -> None:
    """Takes frames of this package out of an error's tracebacks."""
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
    """Errors that the script catches and prints itself, or logs, show its own frames too.

    Frames are in a traceback before the script gets it; `traceback`, where `logging` looks too, is
    where they can be left out.
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
