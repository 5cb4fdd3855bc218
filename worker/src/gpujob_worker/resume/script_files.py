"""The files that an unmodified script writes, across a resume.

Every file that the script opens for writing is recorded, and its size is saved with each
checkpoint. In a process that resumes, it is held unchanged until the script is back at its place.
Writers in C++ other than torch's and safetensors', and descriptors from `os.open`, are not seen.
"""

import builtins
import functools
import importlib
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import safetensors.torch
import torch

from gpujob_worker.resume.append_journal import AppendJournal
from gpujob_worker.resume.databases import Databases
from gpujob_worker.resume.held_files import HeldFiles, wrap
from gpujob_worker.resume.script_place import current_frame
from gpujob_worker.resume.written_files import (
    APPEND,
    UPDATE,
    WRITE,
    WrittenFiles,
    mark_of,
    put_content,
    size_of,
)
from gpujob_worker.run.installed_files import is_script_file

# These took a reference to `open` when they were imported.
_TOOK_OPEN = (("bz2", "_builtin_open"), ("tarfile", "bltn_open"))
# These open, remove and rename for their callers.
_FOR_CALLERS = {
    *("os", "pathlib", "pathlib._abc", "pathlib._local", "shutil", "tempfile"),
    __name__,
}
_HELD = "gpujob_worker.resume.held_files"
_OWN = ("gpujob_worker.", "gpujob_api.")
_COMPRESSED = {"bz2", "gzip", "lzma"}
# The position of `opener` among the further arguments of `open`.
_OPENER = 5
# Maximum number of folders made by the script that are tracked.
_FOLDERS_MAX = 10_000
LOST_MAX = 3
_NO_FILES = ("/dev/", "/proc/", "/sys/")


class RedoneFiles:
    """Repeats file operations after a save. `saved` has the files of the save by path.

    `leaves` is called with the reason why the script cannot continue, and does not return.
    """

    def __init__(
        self, saved: dict[str, Any], folders: Iterable[str], leaves: Callable[[str], Any]
    ) -> None:
        self._folders, self._leaves = set(folders), leaves
        written = {path: entry for path, entry in saved.items() if entry["mode"] == WRITE}
        self._entries = written
        self._gone = {path for path in written if not os.path.lexists(path)}
        self._other = {
            path
            for path, entry in written.items()
            if entry.get("mark") is not None
            and path not in self._gone
            and mark_of(path) != entry["mark"]
        }
        for path in self._gone | self._other:
            content = written[path].get("content")
            if content is not None and put_content(path, content):
                self.writes(path)

    def gone(self) -> dict[str, Any]:
        """Returns the entries of files that an earlier attempt left and this one did not find.

        Later saves have them too, so that every attempt knows that it cannot read them.
        """
        return {path: self._entries[path] for path in sorted(self._gone)}

    def is_removed(self, path: str) -> bool:
        """Returns whether the file or folder was already removed."""
        found = {each for each in self._gone if each == path or each.startswith(path + os.sep)}
        if not found or os.path.lexists(path):
            return False
        self._gone -= found
        return True

    def is_made(self, folder: str) -> bool:
        """Returns whether the folder was made after the save. Call it once, when the folder is
        made.
        """
        if folder in self._folders:
            return False
        self._folders.add(folder)
        return os.path.isdir(folder)

    def reads(self, path: str) -> None:
        if path in self._gone:
            self._leaves(f"{path} is gone since an earlier attempt, and is read again")
        if path in self._other:
            self._leaves(f"{path} was changed after the run was saved, and is read again")

    def writes(self, path: str) -> None:
        self._gone.discard(path)
        self._other.discard(path)


class ScriptFiles:
    """The files that one process of a script writes. Inert in forked children."""

    def __init__(self) -> None:
        self.journal = AppendJournal()
        # Called with the reason why the script that came back cannot continue.
        self.leaves: Callable[[str], Any] = _goes_on
        self._redone: RedoneFiles | None = None
        self._folders: set[str] = set()
        # In the order in which they were made, as far as they exist.
        self._temporary: dict[str, None] = {}
        self._open_plainly: Any = builtins.open
        self._written = WrittenFiles()
        self._held: HeldFiles | None = None
        self._not_the_scripts: tuple[str, ...] = _NO_FILES
        self._saves = 0
        self._notes: dict[str, str] = {}
        self._active = True
        self.databases = Databases(self._held_path, self._asked_by_script)

    def install(self) -> None:
        plain = self._open_plainly

        @functools.wraps(plain)
        def opens(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            if not self._active or type(file) is int or ("r" in mode and "+" not in mode):
                if self._redone is not None and self._active:
                    self._reads(file)
                return plain(file, mode, *arguments, **keywords)
            return self._open(file, mode, *arguments, **keywords)

        builtins.open = io.open = opens
        for name, attribute in _TOOK_OPEN:
            module = importlib.import_module(name)
            if getattr(module, attribute, None) is plain:
                setattr(module, attribute, opens)
        self._wrap_saving(torch, "save")
        self._wrap_saving(safetensors.torch, "save_file")
        wrap(os, "mkdir", self._makes, self._looks)
        for name in ("rename", "replace"):
            wrap(os, name, self._moves, self._looks)
        for name in ("mkdtemp", "mkstemp", "NamedTemporaryFile"):
            wrap(tempfile, name, self._makes_temporary, self._asked_by_script)
        self.databases.install()
        os.register_at_fork(after_in_child=self._stop)

    def _asked_by_script(self) -> bool:
        return self._active and is_script_file(_caller_frame().f_code.co_filename)

    def _makes_temporary(self, plain: Any, *arguments: Any, **keywords: Any) -> Any:
        made = plain(*arguments, **keywords)
        path = _absolute(made[1] if isinstance(made, tuple) else getattr(made, "name", made))
        if path is not None:
            self._temporary = dict.fromkeys(filter(os.path.lexists, self._temporary))
            if len(self._temporary) < _FOLDERS_MAX:
                self._temporary[path] = None
        return made

    def _looks(self) -> bool:
        """Returns whether the script calls and no files are held any more."""
        return self._held is None and self._called_by_script()

    def _reads(self, file: Any) -> None:
        path = self._script_path(file, _caller())
        if path is not None and self._redone is not None:
            self._redone.reads(path)

    def _makes(self, plain: Any, path: Any, *arguments: Any, **keywords: Any) -> Any:
        known = self._held_path(path)
        if known is None or self._redone is None or not self._redone.is_made(known):
            plain(path, *arguments, **keywords)
        if known is not None and len(self._folders) < _FOLDERS_MAX:
            self._folders.add(known)

    def _moves(self, plain: Any, src: Any, dst: Any, **keywords: Any) -> Any:
        old, new = self._held_path(src), self._held_path(dst)
        if self._redone is not None and old is not None:
            self._redone.reads(old)
        plain(src, dst, **keywords)
        if new is not None and size_of(new) is not None:
            self._notes_write(new)

    def _removes(self, plain: Any, path: Any, *arguments: Any, **keywords: Any) -> Any:
        known = self._held_path(path)
        if known is not None and self._redone is not None and self._redone.is_removed(known):
            return
        plain(path, *arguments, **keywords)

    def _notes_write(self, path: str) -> None:
        if self._redone is not None:
            self._redone.writes(path)
        self._written.note(path, WRITE)

    def exclude(self, directory: Path) -> None:
        """Excludes the content of the directory (that of the checkpoints) from the
        script's files.
        """
        self._not_the_scripts += (os.path.join(os.path.abspath(directory), ""),)

    def _stop(self) -> None:
        self._active = False
        if self._held is not None:
            self._held.active = False

    def _open(self, file: Any, mode: str, *arguments: Any, **keywords: Any) -> Any:
        caller = _caller()
        path = self._script_path(file, caller)
        if path is None or keywords.get("opener") is not None or len(arguments) > _OPENER:
            return self._open_plainly(file, mode, *arguments, **keywords)
        kind = _kind(mode, caller)
        stateful = kind == WRITE and ("+" in mode or caller in _COMPRESSED)
        held = self._held
        if held is not None and kind != UPDATE and size_of(path) is not None and held.holds(path):
            handle = held.open(path, kind, stateful, file, mode, *arguments, **keywords)
        else:
            if self._redone is not None:
                mode = self._again(path, kind, mode)
            known = self._written.get(path)
            begins = kind == APPEND and (known is None or known.mode != APPEND)
            size = size_of(path) if begins or held is not None else None
            handle = self._open_plainly(file, mode, *arguments, **keywords)
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                return handle
            if begins:
                self.journal.note(path, size, self._saves)
            if held is not None and size is None:
                held.created(path)
            if held is not None and kind != UPDATE:
                held.made(path, kind, stateful, handle)
        self._written.note(path, kind, handle, stateful=stateful)
        return handle

    def _again(self, path: str, kind: str, mode: str) -> str:
        """Returns the mode in which to open a file that the script may have made after the save."""
        assert self._redone is not None
        if kind == WRITE:
            self._redone.writes(path)
            return mode.replace("x", "w") if self._written.get(path) is None else mode
        if kind == UPDATE:
            self._redone.reads(path)
        return mode

    def _script_path(self, file: Any, caller: str) -> str | None:
        """Returns the absolute path of a file that is the script's, or None."""
        path = None if caller.startswith(_OWN) else _absolute(file)
        if path is None or path.startswith(self._not_the_scripts):
            return None
        return path

    def _wrap_saving(self, module: Any, name: str) -> None:
        """Wraps a function whose second argument a writer in C++ writes."""
        plain = getattr(module, name)
        parameter = "f" if module is torch else "filename"

        @functools.wraps(plain)
        def saves(what: Any, *arguments: Any, **keywords: Any) -> Any:
            file = arguments[0] if arguments else keywords.get(parameter)
            path = self._script_path(file, _caller()) if self._active else None
            if path is None:
                return plain(what, *arguments, **keywords)
            held = self._held
            if held is not None and held.holds(path):
                held.note(path, "stays as it is until the run is back at its place")
                return None
            if held is not None:
                held.created(path)
            result = plain(what, *arguments, **keywords)
            self._notes_write(path)
            return result

        setattr(module, name, saves)

    def snapshot(self) -> dict[str, Any]:
        """Returns the arguments of `release` as plain values."""
        self._saves += 1
        folders = sorted(filter(os.path.isdir, self._folders))
        files = {**self._gone(), **self._written.saved()}
        return {"saves": self._saves, "files": files, "folders": folders}

    def _gone(self) -> dict[str, Any]:
        return self._redone.gone() if self._redone is not None else {}

    def lost(self) -> list[str]:
        """Returns what the script cannot read again, as it could in a run that nothing stopped."""
        text = "is gone since an earlier attempt, and the run begins anew if the script reads it"
        return [f"{path} {text}" for path in self._gone()][:LOST_MAX]

    def hold(self) -> None:
        """Holds the present files unchanged until `release`."""
        self._held = HeldFiles(self._open_plainly, self._called_by_script, self._held_path)
        self._held.install()
        self._notes = self._held.notes

    def _called_by_script(self) -> bool:
        return self._active and not _caller().startswith(_OWN)

    def _held_path(self, file: Any) -> str | None:
        path = _absolute(file)
        return None if path is None or path.startswith(self._not_the_scripts) else path

    def release(self, saved: dict[str, Any]) -> list[str]:
        """Makes handles continue where the run was saved. Returns reasons why the files are not as
        they were.

        With any reason, nothing was changed, and the files stay held.
        """
        held = self._held
        assert held is not None, "hold() comes first"
        reasons = self.conflicts() or held.release(
            saved["files"], self.journal.sizes_since(saved["saves"])
        )
        if reasons:
            return reasons
        self._held = None
        self._saves = saved["saves"]
        self._go_on(saved)
        for path, entry in saved["files"].items():
            if entry["mode"] == APPEND or self._written.get(path) is None:
                self._written.note(path, entry["mode"])
        return []

    def _go_on(self, saved: dict[str, Any]) -> None:
        """Lets the script repeat what it did after the save."""
        self._folders = set(saved["folders"])
        self._redone = RedoneFiles(saved["files"], saved["folders"], self.leaves)
        for name in ("remove", "unlink", "rmdir"):
            wrap(os, name, self._removes, self._looks)
        wrap(shutil, "rmtree", self._removes, self._looks)

    def conflicts(self) -> list[str]:
        """Returns why a resume would not find the files as they are, as far as that is known
        without one.
        """
        found: list[str] = []
        for path, file in self._written:
            if file.mode == UPDATE and file.changed(path):
                found.append(f"{path} is updated in place, which cannot be done a second time")
            elif file.stateful and file.opened():
                found.append(f"{path} is written by more than appending to it, and is open")
        for path in self._temporary:
            if os.path.lexists(path):
                found.append(
                    f"{path} is temporary, and another process does not have it: keep files in a"
                    " folder of their own"
                )
                break
        if self._written.full or self.journal.full:
            found.append("the script writes more files than are kept track of")
        return found

    def held(self) -> dict[str, str]:
        """Returns the held files by path, with their meaning, at most a hundred."""
        return self._notes


def _goes_on(why: str) -> None:
    del why


def _kind(mode: str, caller: str) -> str:
    if "+" in mode and ("w" not in mode or caller.endswith("memmap")):
        return UPDATE if "x" not in mode else WRITE
    return APPEND if "a" in mode else WRITE


def _absolute(file: Any) -> str | None:
    try:
        path = os.fsdecode(file)
        # Most paths that are opened often are plain, and this is far quicker.
        plain = path.startswith("/") and "/." not in path and "//" not in path
        return path if plain and not path.endswith("/") else os.path.abspath(path)
    except (TypeError, ValueError):
        return None


def _caller() -> str:
    """Returns the calling module, except modules that act for others."""
    return _caller_frame().f_globals.get("__name__") or ""


def _caller_frame() -> FrameType:
    frame = found = current_frame()
    while frame is not None:
        found = frame
        name = frame.f_globals.get("__name__") or ""
        if name not in _FOR_CALLERS and name != _HELD:
            break
        frame = frame.f_back
    return found
