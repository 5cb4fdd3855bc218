"""Which attempts of a job really are alive: processes, on any node, not objects.

A thread looks every fifth of a second at what runs in the nodes' control groups.
"""

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from gpujob_local.kubelets import cgroups

LOOK_SECONDS = 0.2
_VARIABLES = ("GPUJOB_NAMESPACE", "GPUJOB_NAME", "GPUJOB_ATTEMPT")


@dataclass(slots=True)
class Seen:
    """All attempts that were seen of a job, and how long two of them were alive together."""

    attempts: set[int] = field(default_factory=set)
    together_seconds: float = 0.0
    alive: frozenset[int] = frozenset()


class LiveAttempts:
    """Use as a context manager; `of(namespace, name)` says what was seen so far."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._groups = tuple(groups)
        self._seen: dict[tuple[str, str], Seen] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.looks = 0

    def __enter__(self) -> "LiveAttempts":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def of(self, namespace: str, name: str) -> Seen:
        return self._seen.setdefault((namespace, name), Seen())

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._end.wait(LOOK_SECONDS):
            now = time.monotonic()
            self._look(now - before)
            before = now
            self.looks += 1

    def _look(self, seconds: float) -> None:
        alive: dict[tuple[str, str], set[int]] = {}
        for group in self._groups:
            for process in cgroups.processes(group):
                if found := _attempt(process):
                    alive.setdefault(found[:2], set()).add(found[2])
        for key in self._seen.copy().keys() | alive.keys():
            seen = self._seen.setdefault(key, Seen())
            attempts = alive.get(key, set())
            seen.attempts |= attempts
            seen.alive = frozenset(attempts)
            if len(attempts) > 1:
                seen.together_seconds += seconds


def _attempt(process: int) -> tuple[str, str, int] | None:
    """Namespace, name and attempt of a worker's process; None for every other one."""
    with contextlib.suppress(OSError, ValueError):
        environment = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
        variables = dict(item.split("=", 1) for item in environment.split("\0") if "=" in item)
        if all(name in variables for name in _VARIABLES):
            namespace, name, attempt = (variables[key] for key in _VARIABLES)
            return namespace, name, int(attempt)
    return None
