"""Counts how often compiled code is compiled again while a script runs.

Torch compiles again whenever a shape or a value differs on which the code depends.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

# Maximum number of a module's calls in which something was compiled: a trial, a batch of another
# size, the first real step. Code that still compiles after that compiles for each batch. Torch
# gives up after eight.
CALLS_MAX = 6

# The calls that are running, the innermost last.
_running: list["Compilations"] = []


class Compilations:
    """Counts the calls of one module in which something was compiled."""

    def __init__(self) -> None:
        self.calls = 0
        self._compiles = False

    @property
    def too_many(self) -> bool:
        return self.calls > CALLS_MAX

    def starts(self) -> None:
        self._compiles = True

    @contextmanager
    def counted(self) -> Generator[None]:
        """Counts compilations during one call."""
        _listen()
        self._compiles = False
        _running.append(self)
        try:
            yield
        finally:
            _running.remove(self)
            self.calls += self._compiles


def _begins(*details: object) -> None:
    del details
    if _running:
        _running[-1].starts()


def _listen() -> None:
    """Registers the callback again, because `torch.compiler.reset` drops it."""
    handler: Any = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    listeners: Any = getattr(handler, "start_callbacks", None)
    # Without torch's callbacks nothing is counted, and torch's own limit holds.
    if isinstance(listeners, list) and _begins not in listeners:
        handler.register_start_callback(_begins)
