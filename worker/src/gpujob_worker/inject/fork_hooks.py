"""Removes injected changes in processes that the script forks, so that they run as under plain
python.
"""

import os
import weakref
from collections.abc import Callable


def in_forked_children(leave: Callable[[], None]) -> None:
    """Calls the method `leave` in every child that is forked while its object exists."""
    method = weakref.WeakMethod(leave)

    def after_fork() -> None:
        found = method()
        if found is not None:
            found()

    os.register_at_fork(after_in_child=after_fork)
