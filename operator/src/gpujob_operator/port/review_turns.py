"""Decides whose token is reviewed next: addresses take turns, and addresses with a refused token
come last.

An unknown address may be an attacker's next one. Some slots and places are therefore reserved for
tokens that come from the very pod that they claim, and half of them for addresses without a refused
token.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum


class TooManyReviews(Exception):  # noqa: N818 - it is an answer, not a fault of the program
    """The question is not asked now. Ask again later."""


class Standing(IntEnum):
    """The standing of a question. The lowest goes first."""

    # It comes from the address of the pod that the token claims.
    EXPECTED = 0
    UNKNOWN = 1
    # A token of this address was refused.
    REFUSED = 2


@dataclass(slots=True, eq=False)
class _Question:
    address: str
    standing: Standing
    begin: "asyncio.Future[None]"
    begun: bool = False


class ReviewTurns:
    """Bounds how many questions are asked at once, in total and per address, and how many wait."""

    def __init__(self, at_once_max: int, of_address_max: int, waiting_max: int) -> None:
        self._slots = _shares(at_once_max)
        self._places = _shares(waiting_max)
        self._of_address_max = of_address_max
        self._rings = tuple(_Ring() for _ in Standing)
        # Questions in flight, by standing and by address.
        self._asking = [0 for _ in Standing]
        self._asking_of: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, address: str, standing: Standing) -> AsyncGenerator[None]:
        """Waits for the question's turn.

        Raises `TooManyReviews` if no place is left for it, or if it was dropped.
        """
        question = self._enter(address, standing)
        self._begin_next()
        try:
            await question.begin
            yield
        finally:
            if question.begun:
                self._end(question)

    def refused(self, address: str) -> None:
        """Records that a token of the address was refused. Its other questions come last."""
        for ring in self._rings[: Standing.REFUSED]:
            for question in ring.remove(address):
                question.standing = Standing.REFUSED
                self._rings[Standing.REFUSED].add(question)

    def drop(self, address: str, reason: str) -> None:
        """Drops all waiting questions of the address."""
        for ring in self._rings:
            for question in ring.remove(address):
                if not question.begin.done():
                    question.begin.set_exception(TooManyReviews(reason))

    def _enter(self, address: str, standing: Standing) -> _Question:
        waiting = [ring.waiting for ring in self._rings]
        left = _left(waiting, self._places, standing)
        # The limit is the number of free places. A few addresses get many places each, many
        # addresses get few, and a new address still finds one.
        if self._rings[standing].waiting_of(address) >= left:
            raise TooManyReviews(f"{sum(waiting)} tokens wait for their review")
        question = _Question(address, standing, asyncio.get_running_loop().create_future())
        self._rings[standing].add(question)
        return question

    def _begin_next(self) -> None:
        while (question := self._next()) is not None:
            if question.begin.done():
                # The asker is gone.
                continue
            question.begun = True
            self._asking[question.standing] += 1
            self._asking_of[question.address] += 1
            question.begin.set_result(None)

    def _next(self) -> _Question | None:
        for standing in Standing:
            if _left(self._asking, self._slots, standing) > 0:
                question = self._rings[standing].take(self._may_ask_more)
                if question is not None:
                    return question
        return None

    def _may_ask_more(self, address: str) -> bool:
        return self._asking_of[address] < self._of_address_max

    def _end(self, question: _Question) -> None:
        self._asking[question.standing] -= 1
        self._asking_of[question.address] -= 1
        if not self._asking_of[question.address]:
            del self._asking_of[question.address]
        self._begin_next()


class _Ring:
    """The waiting questions of one standing. The address in front is next."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[_Question]] = OrderedDict()
        self.waiting = 0

    def waiting_of(self, address: str) -> int:
        return len(self._of.get(address, ()))

    def add(self, question: _Question) -> None:
        self._of.setdefault(question.address, deque()).append(question)
        self.waiting += 1

    def take(self, may_ask: Callable[[str], bool]) -> _Question | None:
        """Returns the first question of the first address that may ask, and moves that address to
        the end.
        """
        address = next(filter(may_ask, self._of), None)
        if address is None:
            return None
        questions = self._of.pop(address)
        question = questions.popleft()
        self.waiting -= 1
        if questions:
            self._of[address] = questions
        return question

    def remove(self, address: str) -> Sequence[_Question]:
        """Removes and returns all questions of the address."""
        questions = self._of.pop(address, deque[_Question]())
        self.waiting -= len(questions)
        return questions


def _shares(total: int) -> tuple[int, ...]:
    """Returns how many each standing and the standings after it have together."""
    return total, total * 3 // 4, total // 2


def _left(taken: Sequence[int], shares: Sequence[int], standing: Standing) -> int:
    """Returns how many more a standing may take. Each share that contains it is a bound."""
    return min(shares[first] - sum(taken[first:]) for first in range(standing + 1))
