"""Decisions of processes that share one checkpoint directory, through a key-value store.

Each process writes its answer to a question once. The first process reads all answers and decides,
and the others wait for the decision. No collective is involved, and every wait ends. Keys are never
used twice, so a late process finds the decision.
"""

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from gpujob_worker.checkpoint.errors import CheckpointError

POLL_SECONDS = 0.02
NAMED_MAX = 8


class KeyValues(Protocol):
    """The methods of torch.distributed's stores that are used."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


def _nothing() -> None: ...


class Ballot:
    """The answers of one process among `size`. Raises `CheckpointError` once the store is gone."""

    def __init__(
        self,
        values: KeyValues,
        rank: int,
        size: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._values = values
        self.rank = rank
        self.size = size
        self._clock = clock
        self._pause = pause

    @property
    def leads(self) -> bool:
        """Whether this process decides."""
        return self.rank == 0

    def say(self, question: str, word: dict[str, Any]) -> None:
        """Writes this process's answer."""
        self._set(f"{question}/{self.rank}", word)

    def hear(
        self, question: str, seconds: float, meanwhile: Callable[[], None] = _nothing
    ) -> dict[int, dict[str, Any]]:
        """Returns the answers of all, by rank, without those that are missing after `seconds`.

        `meanwhile` is called repeatedly, and may raise to give up.
        """
        missing, ends = list(range(self.size)), self._clock() + seconds
        while True:
            missing = [rank for rank in missing if not self._is_there(f"{question}/{rank}")]
            if not missing or self._clock() >= ends:
                break
            meanwhile()
            self._pause(POLL_SECONDS)
        heard = (rank for rank in range(self.size) if rank not in missing)
        return {rank: self._get(f"{question}/{rank}") for rank in heard}

    def decide(self, question: str, decision: dict[str, Any]) -> None:
        """Writes the first process's decision for all."""
        self._set(f"{question}/decided", decision)

    def decided(
        self, question: str, seconds: float, meanwhile: Callable[[], None] = _nothing
    ) -> dict[str, Any]:
        """Returns the decision. Raises `CheckpointError` if there is none within `seconds`."""
        key, ends = f"{question}/decided", self._clock() + seconds
        while not self._is_there(key):
            if self._clock() >= ends:
                raise CheckpointError(f"process 0 decided nothing within {seconds:.0f} s")
            meanwhile()
            self._pause(POLL_SECONDS)
        return self._get(key)

    def _set(self, key: str, value: dict[str, Any]) -> None:
        self._ask(lambda: self._values.set(key, json.dumps(value)))

    def _is_there(self, key: str) -> bool:
        return bool(self._ask(lambda: self._values.check([key])))

    def _get(self, key: str) -> dict[str, Any]:
        return json.loads(self._ask(lambda: self._values.get(key)))

    def _ask(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (RuntimeError, OSError) as error:
            raise CheckpointError(f"the process group's store is gone: {error}"[:500]) from None


def named(ranks: list[int], size: int) -> str:
    """Returns `processes 1, 2 of 4`, with a limit on how many are named."""
    more = f" and {len(ranks) - NAMED_MAX} more" if len(ranks) > NAMED_MAX else ""
    return f"processes {', '.join(map(str, ranks[:NAMED_MAX]))}{more} of {size}"
