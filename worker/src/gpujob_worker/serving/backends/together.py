"""Parts of a backend that park together."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpujob_worker.serving.backend import Parking


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A part that is dropped when it parks, and made again when it wakes."""

    park: Callable[[], None]
    wake: Callable[[], None]
    host_bytes: int | None = 0


class FromFile:
    """An object of a file. It is dropped when it parks, and loaded again when it wakes."""

    def __init__(self, path: Path, load: Callable[[], Any]) -> None:
        self._path = path
        self._load = load
        self.loaded: Any = load()

    @property
    def host_bytes(self) -> int | None:
        return 0 if self._path.is_file() else None

    def park(self) -> None:
        self.loaded = None

    def wake(self) -> None:
        self.loaded = self._load()


class Together:
    """Parks its parts in their order, and wakes them in the reverse order."""

    def __init__(self, *parts: Parking) -> None:
        self._parts = parts

    @property
    def host_bytes(self) -> int | None:
        """See `Parking.host_bytes`. None if a part cannot park."""
        total_bytes = 0
        for part in self._parts:
            part_bytes = part.host_bytes
            if part_bytes is None:
                return None
            total_bytes += part_bytes
        return total_bytes

    def park(self) -> None:
        with contextlib.ExitStack() as undone:
            for part in self._parts:
                part.park()
                undone.callback(part.wake)
            undone.pop_all()

    def wake(self) -> None:
        with contextlib.ExitStack() as undone:
            for part in reversed(self._parts):
                part.wake()
                undone.callback(part.park)
            undone.pop_all()
