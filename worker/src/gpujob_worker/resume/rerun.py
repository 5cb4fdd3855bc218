"""Compiles the script's loops anew in an attempt that resumes, so that they can be passed quickly.

A script is resumed by running it again from its top. The loops on the way to the place where the
run stopped must then call a listener for their items. `places.json` in the checkpoint directory
names them. Only files that it names, and that have not changed since, are compiled with other loop
headers. All line numbers, columns and names are as before. Without a `listener` the headers behave
as written. Every Python process of a run that has a checkpoint directory reads this at its start,
so it imports nothing until a file is found in `places.json`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, Protocol

    class Listener(Protocol):
        """Called by the loops. `sys._getframe(2)` within its methods is the script's frame, because
        one function of this module is in between.

        The script's loop raises its errors.
        """

        def loop(self, file: str, line: int, iterable: Any) -> Any:
            """Returns the items of the `for` in `line`, which was to iterate over `iterable`."""
            ...

        def turn(self, file: str, line: int) -> bool:
            """Called when the `while` in `line` is about to test its condition, or to begin a turn
            if that is always true.

            False ends it.
            """
            ...


PLACES_FILE = "places.json"
FORMAT = 1
LOOP = "__gpujob_loop__"
TURN = "__gpujob_turn__"
# The checkpoint directory of the first process and its ranks, and the folder in it for a process
# that a shell started. It need not be known which of them this is, because rewritten loops behave
# the same.
FOLDERS = ("", "started-by-shell")

listener: Listener | None = None
# Why nothing, or not all, of `places.json` was read.
notes: list[str] = []
# Listed files that run as written, with the reason. The names are those in `places.json`.
changed: dict[str, str] = {}

_listed: dict[str, _Listed] = {}
_names: set[str] = set()
_begun: set[str] = set()


class _Listed:
    """A file of `places.json`. `name` is its name there."""

    def __init__(self, name: str, sha256: str, loops: set[int]) -> None:
        self.name = name
        self.sha256 = sha256
        self.loops = loops


def install(directory: str | os.PathLike[str] | None) -> None:
    """Called once, before the script. It does nothing without a readable `places.json`."""
    if directory is None:
        return
    try:
        for folder in FOLDERS:
            _read(os.path.join(directory, folder, PLACES_FILE))
        if _listed:
            _prepare((getattr(sys, "argv", None) or [""])[0])
    except Exception as error:
        notes.append(f"no loop is rewritten: {type(error).__name__}: {error}")


def _prepare(program: str) -> None:
    import builtins

    # Set in every process, because a function of the script may be sent to it by its code.
    setattr(builtins, LOOP, _loop)
    setattr(builtins, TURN, _turn)
    if program == "-c":
        # A child of multiprocessing starts in this way, and is not on the way back.
        _listed.clear()
        return
    os.register_at_fork(after_in_child=_forget_listener)
    _compile_imports()
    # With `python -i` the interpreter continues after the script, which this would prevent.
    if program != "-m" and _may_be_listed(program) and not sys.flags.inspect:
        from gpujob_worker.resume.main_program import run_instead

        run_instead(_code_of_main)


def _forget_listener() -> None:
    """Removes the listener in a child, which runs the script's functions and is not on the way to
    the place.
    """
    global listener
    listener = None


def is_active() -> bool:
    """Returns whether a listed loop calls the listener in this process, or will once it is
    imported.
    """
    return bool(files())


def files() -> set[str]:
    """Returns the listed files that run with other loop headers, or will if they are imported.

    The names are those in `places.json`.
    """
    waiting = {entry.name for path, entry in _listed.items() if _may_be_imported(path, entry)}
    return _begun | waiting


def _may_be_imported(path: str, entry: _Listed) -> bool:
    if entry.name in _begun or entry.name in changed:
        return False
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.basename(file) in _names and path in _spellings(file):
            return False  # it is running and bypassed this
    try:
        with open(path, "rb") as stream:
            return _is_as_listed(stream.read(), entry)
    except (OSError, ValueError):
        return False


def code_of(source: bytes, filename: str) -> CodeType | None:
    """Returns the rewritten code of a file with this source, or None if it must run as written."""
    entry = _entry(filename, source)
    if entry is None or not _is_as_listed(source, entry):
        return None
    from gpujob_worker.resume.loop_headers import rewritten

    try:
        code = rewritten(source, filename, entry.loops)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        changed[entry.name] = f"{filename} cannot be compiled: {type(error).__name__}: {error}"
        return None
    _begun.add(entry.name)
    return code


def _is_as_listed(source: bytes, entry: _Listed) -> bool:
    if _sha256(source) == entry.sha256:
        return True
    changed[entry.name] = f"{entry.name} has changed since it was saved"
    return False


def _sha256(source: bytes) -> str:
    import hashlib

    return hashlib.sha256(source).hexdigest()


def _loop(file: str, line: int, iterable: Any) -> Any:
    return iterable if listener is None else listener.loop(file, line, iterable)


def _turn(file: str, line: int) -> bool:
    return True if listener is None else listener.turn(file, line)


def _read(path: str) -> None:
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        notes.append(f"{path} cannot be read: {error}")
        return
    try:
        _list(data)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        notes.append(f"{path} is not understood: {type(error).__name__}: {error}")


def _list(data: bytes) -> None:
    """Reads the data. Raises `KeyError`, `TypeError` or `ValueError`; then none of it is listed."""
    import json

    content = json.loads(data)
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}, where this reads {FORMAT}")
    read: dict[str, _Listed] = {}
    for name, entry in content["files"].items():
        path, sha256 = os.path.abspath(name), entry["sha256"]
        if not isinstance(sha256, str):
            raise TypeError(f"the sha256 of {name} is no text")
        read[path] = _Listed(name, sha256, {int(line) for line in entry["loops"]})
        known = _listed.get(path)
        if known is not None and known.sha256 == sha256:
            read[path].loops |= known.loops
    _listed.update(read)
    _names.update(map(os.path.basename, read))


def _entry(filename: str, source: bytes) -> _Listed | None:
    """Returns the entry of a file.

    A file in another folder than before, as each pod may have its own, is recognized by its name
    and content.
    """
    for path in _spellings(filename):
        if path in _listed:
            return _listed[path]
    if not _may_be_listed(filename):
        return None
    name, sha256 = os.path.basename(filename), _sha256(source)
    alike = (entry for path, entry in _listed.items() if os.path.basename(path) == name)
    return next((entry for entry in alike if entry.sha256 == sha256), None)


def _may_be_listed(filename: str) -> bool:
    """Returns whether the last part of its name is listed, in any spelling. Nothing is read."""
    return any(os.path.basename(path) in _names for path in _spellings(filename))


def _spellings(filename: str) -> tuple[str, str]:
    return os.path.abspath(filename), os.path.realpath(filename)


def _compile_imports() -> None:
    """Patches the import of modules, and of the target of `python -m`. Bytecode is never cached for
    them.
    """
    from importlib.machinery import SourceFileLoader

    plain = SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        # Another kind of loader compiles in its own way.
        if type(self) is SourceFileLoader and os.path.basename(self.path) in _names:
            code = _code_of_module(self, fullname)
            if code is not None:
                return code
        return plain(self, fullname)

    SourceFileLoader.get_code = get_code


def _code_of_module(loader: Any, fullname: str) -> CodeType | None:
    path: str = loader.get_filename(fullname)
    try:
        source: bytes = loader.get_data(path)
    except OSError:
        return None  # the plain way raises it
    return code_of(source, path)


def _code_of_main(code: CodeType, filename: str) -> CodeType | None:
    """Returns the rewritten code, only if the unchanged source gives `code`, which is
    about to run.
    """
    import warnings

    from gpujob_worker.resume.loop_headers import rewritten

    try:
        with open(filename, "rb") as stream:
            source = stream.read()
        entry = _entry(filename, source)
        if entry is None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the interpreter has issued them
            if rewritten(source, filename, ()) == code:
                return code_of(source, filename)
        changed[entry.name] = f"{filename} is not what the interpreter has read"
    except Exception as error:  # the script must run, whatever the error is
        notes.append(f"{filename} runs as written: {type(error).__name__}: {error}")
    return None
