"""Reads a checkpoint's files. A system error does not prove that the file is damaged.

It is retried a few times, and then raises `UnreadableError`. A remount, another user or too many
open files are temporary, and an unreadable checkpoint may be whole. A missing file, or something
else of its name, is detected at once.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpujob_worker.checkpoint.errors import CorruptError, UnreadableError

# Seconds between tries. A volume that is mounted again is back within seconds.
WAIT_SECONDS = (0.1, 0.4, 1.5, 4.0)
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}

Value = TypeVar("Value")


def read_patiently(path: Path, read: Callable[[], Value]) -> Value:
    """Returns the result of `read` once it succeeds. Raises `UnreadableError`."""
    waits = iter(WAIT_SECONDS)
    while True:
        try:
            return read()
        except (OSError, RuntimeError, MemoryError) as error:
            wait = next(waits, None)
            if wait is None:
                raise UnreadableError(_text(path, error)) from None
        time.sleep(wait)


def read_file(path: Path, read: Callable[[Path], Value]) -> Value:
    """Returns the result of `read` on a regular file.

    Raises `UnreadableError`, and `CorruptError` if there is no such file.
    """

    def attempt() -> Value | CorruptError:
        try:
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode):
                # Opening a pipe would block forever, and a link may lead anywhere.
                what = "a link" if stat.S_ISLNK(mode) else "no file"
                return CorruptError(f"{_name(path)} is {what}")
            return read(path)
        except ValueError as error:
            return CorruptError(f"{_name(path)}: {error}")
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            return CorruptError(f"{_name(path)} cannot be read: {error.strerror}")

    found = read_patiently(path, attempt)
    if isinstance(found, CorruptError):
        raise found
    return found


def is_there(path: Path) -> bool:
    """Returns whether the name exists. Raises `UnreadableError`."""

    def look() -> bool:
        try:
            os.lstat(path)
        except FileNotFoundError:
            return False
        return True

    return read_patiently(path, look)


def names_in(folder: Path) -> list[str]:
    """Returns the names in the folder. Raises `UnreadableError`."""
    return read_patiently(folder, lambda: os.listdir(folder))


def _name(path: Path) -> str:
    """Returns the name with its folder, because every checkpoint has files of the same names."""
    return f"{path.parent.name}/{path.name}"


def _text(path: Path, error: BaseException) -> str:
    why = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno:
        why = f"{error.strerror} ({errno.errorcode.get(error.errno, error.errno)})"
    return (
        f"{path} cannot be read after {len(WAIT_SECONDS) + 1} tries in {sum(WAIT_SECONDS):.0f} s:"
        f" {why}. Whether it is damaged is not known, so every checkpoint stays as it is. Start the"
        " job again when the volume can be read; to go on without this checkpoint, move its folder"
        " out of the checkpoint directory"
    )
