"""Marks when the worker itself is at work. Calls that torch makes meanwhile are not the
script's.
"""

from collections.abc import Generator
from contextlib import contextmanager


class OwnWork:
    """Shared by all hooks of a process."""

    def __init__(self) -> None:
        self.under_way = False

    @contextmanager
    def doing(self) -> Generator[None]:
        self.under_way = True
        try:
            yield
        finally:
            self.under_way = False
