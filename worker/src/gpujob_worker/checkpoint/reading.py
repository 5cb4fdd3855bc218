"""Reads a checkpoint's files. An error of the system tells nothing about the file.

It is tried again a few times and then is an `UnreadableError`: a remount, another user or too many
open files pass, and a checkpoint that nobody could read may be whole. That a file is missing, or
that something else has its name, is known at once.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpujob_worker.checkpoint.errors import CorruptError, UnreadableError

# Between one try and the next. A volume that is mounted again is back within seconds.
WAIT_SECONDS = (0.1, 0.4, 1.5, 4.0)
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}

Value = TypeVar("Value")


def read_patiently(path: Path, read: Callable[[], Value]) -> Value:
    """What `read` returns, once it can. Raises `UnreadableError`."""
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
    """What `read` makes of a regular file. Raises `UnreadableError`, and `CorruptError` where no
    such file is there.
    """

    def attempt() -> Value | CorruptError:
        try:
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode):
                # Opened, a pipe would wait for ever, and a link may lead anywhere.
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
    """Whether something has the name. Raises `UnreadableError`."""

    def look() -> bool:
        try:
            os.lstat(path)
        except FileNotFoundError:
            return False
        return True

    return read_patiently(path, look)


def names_in(folder: Path) -> list[str]:
    """What lies in the folder. Raises `UnreadableError`."""
    return read_patiently(folder, lambda: os.listdir(folder))


def _name(path: Path) -> str:
    """With its folder: every checkpoint has files of the same names."""
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
