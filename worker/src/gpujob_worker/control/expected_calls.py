"""How many calls of its model a script makes, from the length of the loader that it iterates."""

from typing import Any

from torch.utils.data import IterableDataset

# Calls in a pass before anything is expected.
CALLS_MIN = 3
# Batches that a loop may have requested ahead of its calls.
AHEAD_MAX = 2


class ExpectedCalls:
    """Counts the batches of the present pass. A loop that makes one call for each batch makes as
    many calls as its loader has batches.
    """

    def __init__(self) -> None:
        self._passes = self._batches = self._calls_before = 0
        self._length: int | None = None

    def pass_begins(self, loader: Any, calls: int) -> None:
        """Notes a pass over a loader after this number of calls."""
        self._passes += 1
        self._batches, self._calls_before = 0, calls
        self._length = _length(loader)

    def batch_received(self) -> None:
        self._batches += 1

    def total(self, calls: int, *, resumed: bool) -> int | None:
        """Returns the number of calls at the end of the pass, after this number of calls.

        Returns None if it is not known: calls and batches do not alternate, or the pass began
        before the script was resumed in it. Later passes are unknown until they begin.
        """
        made = calls - self._calls_before
        alternate = made >= CALLS_MIN and 0 <= self._batches - made <= AHEAD_MAX
        if self._length is None or not alternate or (resumed and self._passes == 1):
            return None
        return self._calls_before + self._length


def _length(loader: Any) -> int | None:
    """Returns the number of batches. That of a stream is only its author's estimate."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:  # a sampler of the script may have no length
        return None
