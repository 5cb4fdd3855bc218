"""All processes do the same at the same safe point, whoever asks for it and whenever."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from gpujob_worker.resume.lockstep import Lockstep, Order, StepsAhead, Wish

STOP, SAVE = Wish(Order.STOP, 30.0, "SIGTERM"), Wish(Order.SAVE)


class Gang:
    """Processes that pass their safe points one by one, as far ahead as gradients let them."""

    def __init__(self, size: int, ahead: int = 0) -> None:
        self.told: list[tuple[int, str, float]] = []
        self.done: list[list[Order]] = [[] for _ in range(size)]
        self._ahead = ahead
        values: Any = HashStore()
        steps = StepsAhead()
        steps.steps = ahead
        self._members = [
            Lockstep(
                values,
                leads=rank == 0,
                on_stop=lambda why, left, rank=rank: self.told.append((rank, why, left)),
                ahead=steps,
            )
            for rank in range(size)
        ]

    def may_pass(self, rank: int) -> bool:
        """A step's gradients are exchanged before its end: nobody is more steps ahead."""
        left = any(Order.STOP in done for done in self.done)
        slowest = min(len(done) for done in self.done)
        return Order.STOP not in self.done[rank] and (
            left or len(self.done[rank]) <= slowest + self._ahead
        )

    def passes(self, rank: int, wish: Wish = Wish()) -> Order:  # noqa: B008 - frozen
        order = self._members[rank].passes(wish)
        self.done[rank].append(order)
        return order

    def lost(self) -> list[str | None]:
        return [member.lost for member in self._members]


def test_a_stop_of_one_comes_one_step_later_for_all() -> None:
    gang = Gang(3)
    for rank in (0, 1, 2):
        assert gang.passes(rank) is Order.GO_ON
    assert gang.passes(0) is Order.GO_ON
    assert gang.passes(1, STOP) is Order.GO_ON
    assert gang.passes(2) is Order.GO_ON
    assert [gang.passes(rank, STOP if rank == 1 else Wish()) for rank in (2, 0, 1)] == [
        Order.STOP
    ] * 3
    assert sorted(gang.told) == [(rank, "SIGTERM", 30.0) for rank in range(3)]


def test_a_stop_follows_a_checkpoint_at_once() -> None:
    gang = Gang(2)
    gang.passes(0, SAVE)
    gang.passes(1, STOP)
    assert [gang.passes(0), gang.passes(1, STOP)] == [Order.SAVE] * 2
    assert [gang.passes(1, STOP), gang.passes(0)] == [Order.STOP] * 2


@pytest.mark.promise("I13")
@given(st.data(), st.integers(2, 4), st.integers(0, 3))
def test_all_do_the_same_in_any_order(data: st.DataObject, size: int, ahead: int) -> None:
    gang = Gang(size, ahead)
    asks = {rank: data.draw(st.integers(0, 12)) for rank in range(size) if data.draw(st.booleans())}
    for _ in range(200):
        able = [rank for rank in range(size) if gang.may_pass(rank)]
        if not able:
            break
        rank = data.draw(st.sampled_from(able))
        at = len(gang.done[rank])
        saves = rank == 0 and data.draw(st.booleans())
        wish = STOP if at >= asks.get(rank, 99) else SAVE if saves else Wish()
        gang.passes(rank, wish)
        if at > 30:
            break
    assert gang.lost() == [None] * size
    together = min(len(done) for done in gang.done)
    assert all(done[:together] == gang.done[0][:together] for done in gang.done)
    if any(Order.STOP in done for done in gang.done):
        stopped = next(done.index(Order.STOP) for done in gang.done if Order.STOP in done)
        # Checkpoints that were planned before come first; one that is ahead may write the plan.
        assert stopped <= min(asks.values()) + 4 * (1 + ahead)


def test_processes_that_do_not_step_together_are_told_so_and_save_no_more() -> None:
    gang = Gang(2)
    for _ in range(5):
        gang.passes(0)
    gang.passes(1, SAVE)
    assert gang.passes(0) is Order.SAVE
    why = "the processes do not step together: a plan was for safe point 2, and this one is at 6"
    assert gang.lost() == [why, None]
    assert gang.passes(0, SAVE) is Order.GO_ON
    assert gang.passes(0, STOP) is Order.STOP


class GoneStore:
    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("connection reset by peer")


def test_without_the_store_each_is_alone() -> None:
    gone: Any = GoneStore()
    one = Lockstep(gone, leads=True, on_stop=lambda why, left: None)
    assert one.passes(SAVE) is Order.GO_ON
    assert one.lost == "the process group's store is gone: connection reset by peer"
    assert one.passes(STOP) is Order.STOP


class Event:
    """Of a GPU that has run so many steps as were waited for."""

    waited: int = 0

    def record(self, stream: Any) -> None: ...

    def synchronize(self) -> None:
        Event.waited += 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    Event.waited = 0
    monkeypatch.setattr(torch.cuda, "Event", Event)

    def current_stream(device: torch.device) -> None: ...

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    return torch.device("cuda", 0)


def test_a_process_is_never_more_steps_ahead_of_its_gpu(gpu: torch.device) -> None:
    ahead = StepsAhead(gpu)
    assert ahead.steps == 4
    for _ in range(10):
        ahead.hold()
    assert Event.waited == 6
