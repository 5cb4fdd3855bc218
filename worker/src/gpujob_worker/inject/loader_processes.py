"""The worker processes that load whole batches, and the results that they return."""

import math
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import Dataset, _utils
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.inject.random_streams import Streams, changed_streams, put_streams, streams_now

# A batch that has not arrived after this many seconds never will; see `Processes.wait_seconds`.
WAIT_SECONDS_MAX = 60.0
# Seconds between two checks of a worker while its batch is awaited.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The random numbers that a batch drew. It is no container, because torch would search one for
    tensors to pin.
    """

    changes: dict[str, tuple[Any, Any]]
    failed: bool = False
    # Why batches of the loader cannot be sent between processes, or None.
    unsendable: str | None = None

    def fits(self, now: Streams) -> bool:
        """Returns whether loading the batch here and now would have given the same one."""
        missing = object()
        expected = {name: before for name, (before, _) in self.changes.items()}
        return not self.failed and all(
            now.get(name, missing) == before for name, before in expected.items()
        )

    @property
    def after(self) -> dict[str, Any]:
        return {name: state for name, (_, state) in self.changes.items()}


class Loading(Dataset[Any]):
    """Runs in a worker process. One item is a whole batch."""

    def __init__(self, fetcher: Any) -> None:
        self._fetcher = fetcher
        self._is_sendable = False

    def __getitem__(self, task: tuple[Streams | None, Any]) -> tuple[Loaded, Any]:
        start, indices = task
        if start is not None:
            put_streams(start)
        before = streams_now()
        try:
            batch = self._fetcher.fetch(indices)
        except Exception:
            return Loaded({}, failed=True), None  # it is raised where it is loaded again
        loaded = Loaded(changed_streams(before, streams_now()))
        if not self._is_sendable:
            # A queue would write the error to stderr, and the batch would never arrive.
            try:
                ForkingPickler.dumps(batch)
            except Exception as error:
                return Loaded({}, unsendable=f"{type(error).__name__}: {error}"), None
            self._is_sendable = True
        return loaded, batch


class Processes(_MultiProcessingDataLoaderIter):
    """Workers for which the wait is bounded, whatever the script's loader sets."""

    wait_seconds = WAIT_SECONDS_MAX

    def keep_deaths_silent(self) -> None:
        """Removes torch's handler of SIGCHLD for these workers.

        It would raise the death of a worker wherever the script is at that moment. `_try_get_data`
        notices it too.
        """
        remove = getattr(_utils.signal_handling, "_remove_worker_pids", None)
        if remove is not None and getattr(self, "_worker_pids_set", False):
            remove(id(self))
            self._worker_pids_set = False

    def _get_data(self) -> Any:
        look = min(_LOOK_SECONDS, self.wait_seconds)
        for _ in range(math.ceil(self.wait_seconds / look)):
            has_come, data = self._try_get_data(look)
            if has_come:
                return data
        raise RuntimeError(f"timed out: no batch came in {self.wait_seconds:.0f} s")
