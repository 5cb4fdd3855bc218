"""Under a flood of forged tokens new workers are heard; all agents are, when a leader begins.

Time is virtual: a review takes seconds of it, and connections try again as real ones do.
"""

import asyncio

import pytest

from gpujob_operator.port.review_turns import ReviewTurns, Standing, TooManyReviews
from gpujob_operator.port.tokens import AGENT_REVIEWS_AT_ONCE_MAX
from tests.harness.waiting import eventually
from tests.simulation.token_port import TokenPort

pytestmark = pytest.mark.promise("I15")

REVIEW_SECONDS = 3.0
WAIT_SECONDS_MAX = REVIEW_SECONDS + 2.0
NEW_LEADER_SECONDS_MAX = 2.0
# Of the eight slots, those for addresses of which nothing is known.
UNKNOWN_AT_ONCE = 6


@pytest.mark.parametrize("addresses", [12, 100])
@pytest.mark.parametrize("begins", [0.0, 1.0, 15.0])
def test_a_new_worker_at_its_pods_address_waits_for_its_own_review(
    addresses: int, begins: float
) -> None:
    port = TokenPort(REVIEW_SECONDS)
    port.flood(addresses)
    port.run(begins)
    port.worker("new", "10.0.0.1", from_its_pod=True)
    port.run(60.0, heard=1)
    assert port.waits, "it was not heard within a minute"
    assert port.waits[0] <= WAIT_SECONDS_MAX
    port.close()


@pytest.mark.parametrize("addresses", [12, 100])
def test_where_pods_addresses_are_changed_each_address_has_one_turn_before(addresses: int) -> None:
    """And once it had, it comes after those of which nothing is known."""
    port = TokenPort(REVIEW_SECONDS)
    port.flood(addresses)
    port.run(0.5)
    first_turn = REVIEW_SECONDS * (addresses / UNKNOWN_AT_ONCE + 1)
    port.worker("early", "10.0.0.1", from_its_pod=False)
    port.run(60.0, heard=1)
    assert port.waits[0] <= first_turn + WAIT_SECONDS_MAX
    # The last reviews of their first turn end.
    port.run(2 * REVIEW_SECONDS)
    port.worker("late", "10.0.0.2", from_its_pod=False)
    port.run(60.0, heard=2)
    assert port.waits[1] <= WAIT_SECONDS_MAX
    port.close()


def test_a_gang_begins_within_a_flood() -> None:
    """Its workers take all slots as they get free."""
    port = TokenPort(REVIEW_SECONDS)
    port.flood(100)
    port.run(5.0)
    for rank in range(32):
        port.worker(f"new-1-{rank}", f"10.0.1.{rank}", from_its_pod=True)
    port.run(60.0, heard=32)
    assert len(port.waits) == 32
    assert max(port.waits) <= REVIEW_SECONDS * (32 / 8 + 1) + 2.0
    port.close()


def test_a_flood_is_asked_about_in_half_of_the_slots() -> None:
    port = TokenPort(REVIEW_SECONDS)
    port.flood(12)
    port.run(15.0)
    before, port.kube.at_once_max = port.kube.asked, 0
    port.run(15.0)
    assert port.kube.at_once_max <= 4
    assert port.kube.asked - before <= 15.0 * 4 / REVIEW_SECONDS + 4
    port.close()


def test_all_agents_are_proven_soon_after_a_leader_begins() -> None:
    port = TokenPort(0.05)
    for number in range(1000):
        port.agent(f"n{number}", f"10.1.{number // 250}.{number % 250}")
    port.run(60.0, heard=1000)
    assert len(port.waits) == 1000
    assert max(port.waits) <= NEW_LEADER_SECONDS_MAX
    assert port.kube.asked == 1000
    assert port.kube.at_once_max <= AGENT_REVIEWS_AT_ONCE_MAX
    port.close()


def test_agents_are_no_more_at_once_however_many_come() -> None:
    port = TokenPort(30.0)
    for number in range(1000):
        port.agent(f"n{number}", f"10.1.{number // 250}.{number % 250}")
    port.run(29.0)
    assert port.kube.asked == AGENT_REVIEWS_AT_ONCE_MAX * 3 // 4
    port.close()


class _Turns:
    """Questions of `ReviewTurns`, each asked until it is let go."""

    def __init__(self, at_once: int, of_address: int, waiting: int) -> None:
        self.turns = ReviewTurns(at_once, of_address, waiting)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, address: str, number: int = 0, standing: Standing = Standing.UNKNOWN) -> str:
        name = f"{address}/{number}"
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._ask(address, name, standing))
        return name

    async def _ask(self, address: str, name: str, standing: Standing) -> None:
        async with self.turns.turn(address, standing):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]

    async def begins(self, *names: str) -> None:
        await eventually(lambda: set(self.begun) >= set(names), what=f"{names} {self.begun}")

    async def refused(self, name: str) -> None:
        with pytest.raises(TooManyReviews):
            await self.tasks[name]


@pytest.fixture
async def turns() -> _Turns:
    """Four questions at once, of which three of unknown addresses; two of one address."""
    return _Turns(4, 2, 8)


async def test_addresses_take_turns(turns: _Turns) -> None:
    first = [turns.ask("a", number) for number in range(3)]
    await turns.begins(*first[:2])
    other = turns.ask("b")
    await turns.begins(other)
    third = turns.ask("c")
    await turns.end(first[0])
    await turns.begins(first[2])
    await turns.end(first[1])
    await turns.begins(third)
    assert turns.begun == [*first[:2], other, first[2], third]


async def test_a_slot_is_kept_for_who_is_expected(turns: _Turns) -> None:
    unknown = [turns.ask(address) for address in "abcd"]
    await turns.begins(*unknown[:3])
    expected = turns.ask("e", standing=Standing.EXPECTED)
    await turns.begins(expected)
    assert unknown[3] not in turns.begun
    second = turns.ask("f", standing=Standing.EXPECTED)
    await turns.end(unknown[0])
    await turns.begins(second)
    assert unknown[3] not in turns.begun, "who is expected goes first"


async def test_who_was_refused_has_half_of_the_slots_and_comes_last(turns: _Turns) -> None:
    refused = [turns.ask(address, standing=Standing.REFUSED) for address in "abc"]
    await turns.begins(*refused[:2])
    unknown = turns.ask("d")
    await turns.begins(unknown)
    assert refused[2] not in turns.begun
    later = [turns.ask("e"), turns.ask("f")]
    await turns.end(refused[0])
    await turns.begins(later[0])
    assert refused[2] not in turns.begun


async def test_what_waits_of_an_address_that_is_refused_comes_last(turns: _Turns) -> None:
    first = [turns.ask("a", number) for number in range(3)]
    other = turns.ask("b")
    await turns.begins(*first[:2], other)
    last = turns.ask("c")
    turns.turns.refused("a")
    await turns.end(first[0])
    await turns.begins(last)
    assert first[2] not in turns.begun
    turns.turns.drop("a", "enough")
    await turns.refused(first[2])


async def test_an_address_that_has_none_finds_a_place(turns: _Turns) -> None:
    """Six places are those of unknown addresses; one that takes all it can leaves some."""
    greedy = [turns.ask("a", number) for number in range(20)]
    await eventually(lambda: sum(turns.tasks[name].done() for name in greedy) == 15)
    for name in greedy[5:]:
        await turns.refused(name)
    other = turns.ask("b")
    await turns.begins(other)


async def test_places_are_bounded_and_some_are_kept(turns: _Turns) -> None:
    running = [turns.ask(address) for address in "abc"]
    await turns.begins(*running)
    waiting = [turns.ask(f"x{number}") for number in range(6)]
    await turns.refused(turns.ask("y"))
    kept = [turns.ask(f"e{number}", standing=Standing.EXPECTED) for number in range(3)]
    await turns.begins(kept[0])
    assert not any(turns.tasks[name].done() for name in [*waiting, *kept])
    await turns.refused(turns.ask("e3", standing=Standing.EXPECTED))


async def test_who_goes_leaves_its_place_and_its_slot() -> None:
    turns = _Turns(1, 1, 8)
    asked = [turns.ask(address, standing=Standing.EXPECTED) for address in "abc"]
    await turns.begins(asked[0])
    turns.tasks[asked[1]].cancel()
    turns.tasks[asked[0]].cancel()
    await turns.begins(asked[2])
    assert asked[1] not in turns.begun
