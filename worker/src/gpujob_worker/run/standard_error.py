"""Lines on standard error, which a script may have closed: what cannot be said is no failure."""

import contextlib
import sys


def say(line: str) -> None:
    """One line; nothing where standard error is gone, or nobody reads it any more."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")
