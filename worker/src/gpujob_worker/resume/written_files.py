"""Modes, handles and sizes of the files that a script writes."""

import contextlib
import os
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import xxhash

# Number of latest files whose content is marked at a save. A mark covers a file's beginning and its
# end, where writers of weights keep the checksums.
_MARKED_MAX = 100
_MARKED_BYTES = 1 << 16
# Total size up to which small files, such as a history that is read and rewritten, are kept whole.
_KEPT_BYTES = 1 << 20
# Size up to which a log is kept, which the script appends to or holds open, and that of all of
# them. A new pod does not have the files that lay in the pod before.
_LOG_BYTES = 1 << 20
_LOGS_BYTES = 4 << 20
PATHS_MAX = 10_000
# Maximum number of remembered files that were written at once and closed.
CLOSED_MAX = 1000

APPEND, WRITE, UPDATE = "append", "write", "update"


def size_of(path: str) -> int | None:
    """Returns the size, or None if there is no regular file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def is_open(handle: Any) -> bool:
    return handle is not None and not handle.closed


@dataclass(slots=True)
class WrittenFile:
    mode: str
    # Its writer has a state besides the position in the file, such as a compressor, or also reads.
    stateful: bool = False
    handles: list[weakref.ref[Any]] = field(default_factory=list[weakref.ref[Any]])
    # Size and time when it was opened, because a file opened for updates may only be read.
    before: tuple[int, int] | None = None
    _marked: tuple[tuple[int, int] | None, str | None] = (None, None)

    def mark(self, path: str) -> str | None:
        """Returns a mark that distinguishes its content from later ones. The file is read only if
        it was written.
        """
        now = stamp(path)
        if now != self._marked[0]:
            self._marked = now, mark_of(path)
        return self._marked[1]

    def opened(self) -> list[Any]:
        """Returns the open handles."""
        return [handle for each in self.handles if is_open(handle := each())]

    def add(self, handle: Any) -> None:
        if self.handles:
            self.handles = [each for each in self.handles if is_open(each())]
        self.handles.append(weakref.ref(handle))

    def changed(self, path: str) -> bool:
        """Returns whether a file that was opened for updates was updated."""
        return self.before is not None and stamp(path) != self.before


def stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def mark_of(path: str) -> str | None:
    """Returns a mark of a file's content, or None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        found = xxhash.xxh3_128(os.pread(descriptor, _MARKED_BYTES, 0))
        found.update(os.pread(descriptor, _MARKED_BYTES, max(0, size - _MARKED_BYTES)))
        return f"{size} {found.hexdigest()}"
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _content_of(path: str, size: int) -> bytes | None:
    """Returns the file's first `size` bytes, or None if it cannot be read or has fewer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.pread(descriptor, size, 0)
        return content if len(content) == size else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def is_log(entry: dict[str, Any]) -> bool:
    """Returns whether the script goes on writing to the file of this entry, at its end or at the
    position.
    """
    return entry["mode"] == APPEND or bool(entry["open"] and entry["mode"] == WRITE)


def put_content(path: str, content: bytes) -> bool:
    """Writes the content, and returns whether the file has it now. A missing folder is not made."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            return os.write(descriptor, content) == len(content)
        finally:
            os.close(descriptor)
    except OSError:
        return False


class WrittenFiles:
    """Files by path, in the order of their last opening. Bounded."""

    def __init__(self) -> None:
        self._lasting: dict[str, WrittenFile] = {}
        self._closed: dict[str, WrittenFile] = {}
        self.full = False

    def get(self, path: str) -> WrittenFile | None:
        return self._lasting.get(path) or self._closed.get(path)

    def note(self, path: str, mode: str, handle: Any = None, *, stateful: bool = False) -> None:
        known = self._lasting.pop(path, None) or self._closed.pop(path, None)
        file = WrittenFile(mode, stateful) if known is None else known
        file.mode, file.stateful = mode, stateful
        if handle is not None:
            file.add(handle)
            if mode == UPDATE and file.before is None:
                file.before = stamp(path)
        if mode == WRITE:
            self._closed[path] = file
            if len(self._closed) > CLOSED_MAX:
                self._forget()
        elif len(self._lasting) < PATHS_MAX:
            self._lasting[path] = file
        else:
            self.full = True

    def _forget(self) -> None:
        """Drops the oldest closed file, and keeps open ones."""
        for path, file in list(self._closed.items()):
            del self._closed[path]
            if not file.opened():
                return
            if len(self._lasting) >= PATHS_MAX:
                self.full = True
                return
            self._lasting[path] = file

    def __iter__(self) -> Iterator[tuple[str, WrittenFile]]:
        yield from list(self._lasting.items())
        yield from list(self._closed.items())

    def saved(self) -> dict[str, Any]:
        """Returns plain values by path, after it has flushed all handles."""
        found: dict[str, Any] = {}
        marked = set(list(self._closed)[-_MARKED_MAX:])
        left, logs_left = _KEPT_BYTES, _LOGS_BYTES
        for path, file in self:
            position = None
            for handle in file.opened():
                with contextlib.suppress(OSError, ValueError):
                    handle.flush()
                    position = os.lseek(handle.fileno(), 0, os.SEEK_CUR)
            size = size_of(path)
            if size is not None:
                opened = position is not None
                entry: dict[str, Any] = {
                    "mode": file.mode,
                    "size": size,
                    "open": opened,
                    "position": position,
                }
                if path in marked and not opened:
                    entry["mark"] = file.mark(path)
                    if size <= min(left, _MARKED_BYTES):
                        entry["content"] = _content_of(path, size)
                        left -= size
                elif is_log(entry) and size <= min(logs_left, _LOG_BYTES):
                    entry["content"] = _content_of(path, size)
                    logs_left -= size
                found[path] = entry
        return found
