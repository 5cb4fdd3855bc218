"""Files that a resumed script finds again. They are held unchanged until it is back at its place.

On its way the script opens, writes and removes what it wrote and removed the first time. Files from
before its start are left unchanged: handles lead nowhere, and removals are left out.
"""

import contextlib
import functools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpujob_worker.resume.written_files import (
    APPEND,
    WRITE,
    is_log,
    is_open,
    put_content,
    size_of,
)

NOTES_MAX = 100
_CREATED_MAX = 100_000
_DIRECTORIES = ("dir_fd", "src_dir_fd", "dst_dir_fd")


@dataclass(frozen=True, slots=True)
class _Handle:
    path: str
    mode: str
    stateful: bool
    reference: weakref.ref[Any]


def wrap(
    module: Any, name: str, around: Callable[..., Any], is_asked: Callable[[], bool]
) -> tuple[Any, Any]:
    """Makes `around` handle calls of a file function if it `is_asked`. Returns the original and the
    wrapper.

    `around` gets the original function as its first argument.
    """
    plain = getattr(module, name)

    @functools.wraps(plain)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        # With a folder's descriptor, it is a step of an operation that is handled as a whole.
        relative = any(keywords.get(each) is not None for each in _DIRECTORIES)
        if relative or not is_asked():
            return plain(*arguments, **keywords)
        return around(plain, *arguments, **keywords)

    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if plain in known:
            known.add(wrapped)
    setattr(module, name, wrapped)
    return plain, wrapped


class HeldFiles:
    """Holds files from the start of a process that resumes until `release`.

    `is_script` returns whether the script calls the wrapped function. `absolute` returns the
    absolute path of an argument, or None if that is no path.
    """

    def __init__(
        self,
        open_plainly: Any,
        is_script: Callable[[], bool],
        absolute: Callable[[Any], str | None],
    ) -> None:
        self.active = True
        self.notes: dict[str, str] = {}
        self._open_plainly = open_plainly
        self._is_script = is_script
        self._absolute = absolute
        self._created: set[str] = set()
        self._removed: set[str] = set()
        self._handles: list[_Handle] = []
        # Handles of files that the process made.
        self._made: list[_Handle] = []
        self._plain: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        for name in ("remove", "unlink", "rmdir", "truncate"):
            self._wrap(os, name, self._removes)
        self._wrap(shutil, "rmtree", self._removes)
        for name in ("rename", "replace"):
            self._wrap(os, name, self._renames)
        for name in ("link", "symlink"):
            self._wrap(os, name, self._links)
        self._wrap(os, "mkdir", self._makes)
        self._wrap(os, "open", self._opens)

    def _wrap(self, module: Any, name: str, around: Callable[..., Any]) -> None:
        plain, wrapped = wrap(module, name, around, lambda: self.active and self._is_script())
        self._plain.append((module, name, plain, wrapped))

    def uninstall(self) -> None:
        self.active = False
        for module, name, plain, wrapped in self._plain:
            if getattr(module, name) is wrapped:
                setattr(module, name, plain)

    def holds(self, path: str) -> bool:
        """Returns whether the path existed before the process started."""
        return os.path.lexists(path) and not self._is_new(path)

    def _is_new(self, path: str) -> bool:
        while path not in self._created:
            parent = os.path.dirname(path)
            if parent == path:
                return False
            path = parent
        return True

    def created(self, path: str) -> None:
        if len(self._created) < _CREATED_MAX:
            self._created.add(path)

    def made(self, path: str, mode: str, stateful: bool, handle: Any) -> None:
        """Records an open handle of a file that the script made in this process."""
        self._made = [each for each in self._made if is_open(each.reference())]
        self._made.append(_Handle(path, mode, stateful, weakref.ref(handle)))

    def note(self, path: str, what: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.setdefault(path, what)

    def open(
        self, path: str, mode: str, stateful: bool, file: Any, flags: str, *rest: Any, **named: Any
    ) -> Any:
        """Returns a handle of the requested kind that leads nowhere or, with `+`, to a temporary
        file.
        """

        def opener(_path: Any, _flags: int) -> int:
            if "+" not in flags:
                return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            with tempfile.TemporaryFile() as temporary:
                return os.dup(temporary.fileno())

        handle = self._open_plainly(file, flags, *rest, opener=opener, **named)
        self.note(path, "stays as it is until the run is back at its place")
        self._handles = [each for each in self._handles if is_open(each.reference())]
        self._handles.append(_Handle(path, mode, stateful, weakref.ref(handle)))
        return handle

    def _removes(self, plain: Any, path: Any, *arguments: Any, **keywords: Any) -> Any:
        known = self._absolute(path)
        if known is None or not self.holds(known):
            return plain(path, *arguments, **keywords)
        self.note(known, "is not removed or shortened again")
        self._removed.add(known)
        return None

    def _renames(self, plain: Any, src: Any, dst: Any, **keywords: Any) -> Any:
        old, new = self._absolute(src), self._absolute(dst)
        if old is None or new is None or not os.path.lexists(old):
            return plain(src, dst, **keywords)
        if self.holds(old):
            self.note(old, "is not moved again")
            self._removed.add(old)
        elif self.holds(new):
            self.note(new, "stays as it is until the run is back at its place")
            _discard(old)
        else:
            plain(src, dst, **keywords)
            self.created(new)
        return None

    def _links(self, plain: Any, src: Any, dst: Any, *rest: Any, **keywords: Any) -> Any:
        new = self._absolute(dst)
        if new is None or new not in self._removed or not self.holds(new):
            plain(src, dst, *rest, **keywords)
            if new is not None:
                self.created(new)

    def _makes(self, plain: Any, path: Any, *arguments: Any, **keywords: Any) -> Any:
        known = self._absolute(path)
        if known is not None and os.path.isdir(known) and self.holds(known):
            # The script made it the first time. A folder that it removed stays too.
            return
        plain(path, *arguments, **keywords)
        if known is not None:
            self.created(known)

    def _opens(self, plain: Any, path: Any, flags: int, *rest: Any, **keywords: Any) -> int:
        known = self._absolute(path) if flags & os.O_CREAT else None
        if known is not None and not os.path.lexists(known):
            self.created(known)
        return plain(path, flags, *rest, **keywords)

    def release(self, saved: dict[str, Any], appended: dict[str, int | None]) -> list[str]:
        """Releases the files. Returns the reasons why they are not as they were; then nothing was
        changed.

        `appended` has the sizes of files that were first appended to after the save.
        """
        lost = [path for path, entry in saved.items() if self._is_lost(path, entry)]
        known = [*self._handles, *(each for each in self._made if each.path in lost)]
        handles: list[tuple[_Handle, Any]] = [
            (each, handle) for each in known if is_open(handle := each.reference())
        ]
        reasons = [
            reason
            for each, _ in handles
            if (reason := _handle_reason(each, saved.get(each.path))) is not None
        ]
        opened = {each.path for each, _ in handles}
        for path, entry in saved.items():
            reason = self._file_reason(path, entry, path in opened, path in lost)
            if reason is not None:
                reasons.append(reason)
        if reasons:
            return reasons
        self.uninstall()
        for _, handle in handles:
            handle.flush()
        for path in lost:
            if not put_content(path, saved[path]["content"]):
                return [f"{path} is gone, and cannot be written again"]
        for each, handle in handles:
            _go_on(handle, each, saved[each.path])
        self._shorten(saved, appended)
        return []

    def _is_lost(self, path: str, entry: dict[str, Any]) -> bool:
        """Returns whether a log went with the pod before, and can be written again from the
        checkpoint.
        """
        gone = size_of(path) is None or self._is_new(path)
        kept = is_log(entry) and entry.get("content") is not None
        return gone and kept and os.path.isdir(os.path.dirname(path))

    def _file_reason(
        self, path: str, entry: dict[str, Any], opened: bool, lost: bool
    ) -> str | None:
        if not is_log(entry):
            return None
        size = size_of(path) if not self._is_new(path) else 0
        if not lost and (size or 0) < entry["size"]:
            now = "is gone" if size is None else f"has {size} bytes"
            return f"{path} {now}; it had {entry['size']} when the run was saved"
        if entry["mode"] == WRITE and not opened:
            return f"{path} was open for writing when the run was saved, and is not open now"
        return None

    def _shorten(self, saved: dict[str, Any], appended: dict[str, int | None]) -> None:
        """Cuts off lines that a killed process wrote after its last save, because they are written
        again.
        """
        lengths = dict(appended)
        lengths |= {path: each["size"] for path, each in saved.items() if each["mode"] == APPEND}
        for path, length in lengths.items():
            size = size_of(path)
            if size is None or self._is_new(path):
                continue
            if length is None:
                _discard(path)
            elif size > length:
                os.truncate(path, length)


def _discard(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _handle_reason(handle: _Handle, entry: dict[str, Any] | None) -> str | None:
    path = handle.path
    if entry is None or not entry["open"]:
        return f"{path} is open for writing, and was not when the run was saved"
    if handle.stateful:
        return f"{path} is written by more than appending to it, and is open"
    if entry["mode"] != handle.mode:
        return f"{path} is open to {handle.mode}, and was to {entry['mode']} when the run was saved"
    return None


def _go_on(handle: Any, held: _Handle, entry: dict[str, Any]) -> None:
    """Connects the script's handle to the file, at the position at which it was saved."""
    handle.flush()
    flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_APPEND if held.mode == APPEND else 0)
    real = os.open(held.path, flags)
    try:
        os.ftruncate(real, entry["size"])
        descriptor = handle.fileno()
        os.dup2(real, descriptor, os.get_inheritable(descriptor))
    finally:
        os.close(real)
    # This also sets an encoder's state. It writes its mark at the beginning only.
    handle.seek(entry["position"] if held.mode == WRITE else entry["size"])
