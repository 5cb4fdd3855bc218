"""Lines on standard error. A script may have closed it, so a failed write is no error."""

import contextlib
import sys


def say(line: str) -> None:
    """Prints one line, or nothing if standard error is gone or no longer read."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")
