"""Runs the user's script in this process as the interpreter itself would run it.

`__main__`, `sys.argv`, `sys.path[0]`, exit codes and tracebacks are those of `python train.py`.
Frames of this package are removed from what the user sees.
"""

import contextlib
import functools
import importlib.machinery
import os
import runpy
import sys
import traceback
import types
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OWN_DIRECTORY = str(Path(__file__).resolve().parents[1]) + os.sep
_OPTIONS_WITH_VALUE = ("-W", "-X")
# What lists the frames of a traceback, for those who ask and for those who print.
_WALKERS = ("walk_tb", "_walk_tb_with_full_positions")


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A python command line: interpreter options, then a script or `-m module`, then args."""

    options: tuple[str, ...]
    target: str
    is_module: bool
    arguments: tuple[str, ...]


def parse_python(command: Sequence[str]) -> PythonCommand | None:
    """Parses `python [options] script.py args`; None if it is not a python with a script."""
    name = Path(command[0]).name
    if name.endswith(".py"):
        return PythonCommand((), command[0], False, tuple(command[1:]))
    if not name.startswith("python"):
        return None
    options: list[str] = []
    rest = list(command[1:])
    while rest and rest[0].startswith("-"):
        if rest[0] == "-m" and len(rest) > 1:
            return PythonCommand(tuple(options), rest[1], True, tuple(rest[2:]))
        if rest[0] in ("-c", "-", "-m"):
            return None
        taken = 2 if rest[0] in _OPTIONS_WITH_VALUE else 1
        options += rest[:taken]
        rest = rest[taken:]
    return PythonCommand(tuple(options), rest[0], False, tuple(rest[1:])) if rest else None


def run_python(command: PythonCommand) -> None:
    """Runs the script. Its exceptions propagate, without this package's frames in their
    tracebacks.
    """
    hide_own_frames()
    try:
        if command.is_module:
            _run_module(command)
        else:
            _run_script(command)
    except BaseException as error:
        clean_traceback(error)
        raise


def _new_main() -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


def _run_script(command: PythonCommand) -> None:
    path = command.target
    sys.argv = [path, *command.arguments]
    sys.path[0:0] = [str(Path(path).resolve().parent)]
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        sys.stderr.write(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
        )
        raise SystemExit(2) from None
    filename = os.path.abspath(path)  # as the interpreter does
    module = _new_main()
    module.__dict__.update(
        __file__=filename,
        __cached__=None,
        __spec__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", filename),
    )
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def _run_module(command: PythonCommand) -> None:
    _new_main()
    sys.argv = ["-m", *command.arguments]
    sys.path[0:0] = [str(Path.cwd())]
    # The function behind `python -m`; run_module() would leave a temporary __main__ behind.
    runpy._run_module_as_main(command.target)  # type: ignore[attr-defined]  # pyright: ignore


def clean_traceback(error: BaseException) -> None:
    """Removes frames of this package (and runpy above the script) from an error's tracebacks."""
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
        runner = name == "<frozen runpy>" or name.endswith(f"{os.sep}runpy.py")
        if not name.startswith(_OWN_DIRECTORY) and not (runner and not kept):
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


def flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
