"""One decision in all processes that train together, for each of their modules."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from gpujob_api.settings import AttentionKernel, Precision, Settings, Toggle, TunedSettings
from gpujob_worker.checkpoint.ballot import KeyValues
from gpujob_worker.control.consensus import (
    MEASURED,
    Choices,
    Consensus,
    common,
    decide,
    known_round,
)
from gpujob_worker.control.distributed_tuning import FollowingTuner
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features

UNFUSED = TunedSettings(Precision.BFLOAT16, attention=AttentionKernel.FLASH)
FAST = TunedSettings(Precision.BFLOAT16, fused_optimizer=True, attention=AttentionKernel.FLASH)
PLAIN = TunedSettings()
HALF = TunedSettings(Precision.BFLOAT16)
SETTINGS = st.sampled_from([PLAIN, HALF, FAST, TunedSettings(Precision.FLOAT16)])
MODULES = st.lists(st.integers(1, 3), unique=True, max_size=3)


class Clock:
    """Every look at the clock in vain takes a second of it."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += 1.0


def agreement(store: KeyValues, rank: int, size: int = 2, **keywords: Any) -> Consensus:
    clock = Clock()
    return Consensus(store, rank, size, clock=lambda: clock.now, pause=clock.pause, **keywords)


def together(*tasks: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result(60) for future in [pool.submit(task) for task in tasks]]


def settle(one: Consensus, tuned: TunedSettings) -> TunedSettings:
    """As a process with a single module."""
    return one.settle(MEASURED, Choices(1, {1: tuned}))[1]


def test_what_the_first_proposes_and_all_find_safe_is_decided() -> None:
    store = HashStore()
    first, second, third = (Consensus(store, rank, 3) for rank in range(3))

    def lead() -> TunedSettings:
        assert first.come()
        first.propose(1, FAST)
        return settle(first, FAST)

    def follow(one: Consensus) -> TunedSettings:
        assert one.proposal(1) == FAST
        assert one.proposal(2) is None
        return settle(one, TunedSettings(Precision.BFLOAT16, batch_per_step=4))

    decided = together(lead, lambda: follow(second), lambda: follow(third))
    assert decided[0] == HALF
    # A split is each process's own: it changes no gradient.
    assert decided[1] == decided[2] == TunedSettings(Precision.BFLOAT16, batch_per_step=4)
    # Another round knows nothing of the one before.
    known = Choices(1, {1: FAST})
    rounds = [lambda one=one: one.settle(known_round(1), known) for one in (first, second, third)]
    assert together(*rounds) == [{1: FAST}] * 3


def test_a_process_that_does_not_come_leaves_all_as_they_are() -> None:
    store = HashStore()
    leader = agreement(store, 0)
    assert not leader.come()
    assert settle(leader, FAST) == PLAIN
    # Who comes late finds the decision made.
    assert settle(agreement(store, 1), FAST) == PLAIN


def test_a_first_process_that_comes_late_finds_that_nothing_is_done() -> None:
    store = HashStore()
    follower, leader = agreement(store, 1), agreement(store, 0)
    assert follower.proposal(1) is None
    assert settle(follower, PLAIN) == PLAIN
    assert leader.come()
    leader.propose(1, FAST)
    assert settle(leader, FAST) == PLAIN


def test_a_decision_that_was_written_is_read_without_a_wait() -> None:
    """The second of three gave up on the first one, which waits for the third no more."""
    store, waited = HashStore(), list[float]()
    assert settle(agreement(store, 1, 3), FAST) == PLAIN
    assert settle(Consensus(store, 0, 3, pause=waited.append), FAST) == PLAIN
    assert waited == []


def test_a_follower_that_gave_up_binds_the_first_process() -> None:
    """The first one waits for a third, the second loses patience: one decision all the same."""
    store = HashStore()
    leader, second = Consensus(store, 0, 3), agreement(store, 1, 3)
    third = Consensus(store, 2, 3)
    assert settle(second, FAST) == PLAIN
    assert together(lambda: settle(leader, FAST), lambda: settle(third, FAST)) == [PLAIN] * 2


@pytest.mark.parametrize(("wanted", "expected"), [("Auto", 384.0), ("On", 984.0)])
def test_a_first_process_that_died_is_waited_for_no_longer_than_it_may_take(
    wanted: str, expected: float
) -> None:
    clock = Clock()
    one = Consensus(HashStore(), 1, 2, clock=lambda: clock.now, pause=clock.pause)
    log = DecisionLog()
    tuner = FollowingTuner(Settings(compile=Toggle(wanted)), Features(), log, 12.0)
    tuner.join(one, 1)
    assert tuner.proposed == PLAIN
    assert tuner.proposed == PLAIN
    assert clock.now == pytest.approx(expected, abs=2.0)
    assert log.lines == ("tuning skipped: the first process proposed nothing",)


def test_who_is_asked_to_stop_does_not_wait() -> None:
    waited: list[float] = []
    stopped = Consensus(HashStore(), 1, 2, cancelled=lambda: True, pause=waited.append)
    assert stopped.proposal(1) is None
    assert settle(stopped, FAST) == PLAIN
    assert waited == []


def test_a_store_that_is_gone_ends_no_run() -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Broken pipe")

    store: Any = Gone()
    for rank in range(2):
        one = agreement(store, rank)
        assert not one.come()
        assert one.proposal(1) is None
        assert settle(one, FAST) == PLAIN
        one.ask_roll_back(10, "why")
        assert one.roll_back_due(20) is None


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "7",
        '{"first": 1}',
        '{"first": 1, "settings": [1]}',
        '{"first": 1, "settings": {"one": {}}}',
        '{"first": 1, "settings": {"1": {"precision": "float99"}}}',
    ],
)
def test_what_a_store_holds_is_not_trusted(text: str) -> None:
    store = HashStore()
    store.set(f"{MEASURED}/proposal", text)
    store.set(f"{MEASURED}/decision", text)
    assert agreement(store, 1).proposal(1) is None
    assert settle(agreement(store, 1), FAST) == PLAIN
    # So that the text is all that is wrong.
    store.set(f"{MEASURED}/proposal", '{"first": 1, "settings": {"1": {"precision": "bfloat16"}}}')
    assert agreement(store, 1).proposal(1) == HALF


def test_all_go_back_at_the_same_check() -> None:
    store = HashStore()
    quick, slow = agreement(store, 0), agreement(store, 1)
    assert quick.roll_back_due(10) is None
    quick.ask_roll_back(10, "slower")
    slow.ask_roll_back(10, "another reason")
    # The slow one is at the check that the quick one has left behind.
    assert slow.roll_back_due(10) is None
    assert quick.roll_back_due(20) == slow.roll_back_due(20) == "slower"


def test_what_is_common() -> None:
    whole = TunedSettings(Precision.FLOAT16, compile=True, regional_compile=True)
    assert common([whole, whole]) == whole
    assert common([whole, TunedSettings(Precision.FLOAT16)]) == TunedSettings(Precision.FLOAT16)
    assert common([whole, HALF]) == PLAIN


def test_processes_that_compared_the_kernel_in_different_optimizers_share_none() -> None:
    """Each would fuse as many as it compared, and replicas must step alike."""
    one, two = (TunedSettings(fused_optimizer=True, optimizers_judged=n) for n in (1, 2))
    assert common([two, two]) == two
    assert common([one, two]) == common([two, one]) == PLAIN


@pytest.mark.parametrize(
    ("second", "decided"),
    [
        (Choices(1, {1: FAST, 2: FAST}), {1: FAST, 2: HALF}),
        # A module that it has not met, and one that the other process has not met.
        (Choices(1, {1: FAST}), {1: FAST}),
        (Choices(1, {1: FAST, 2: HALF, 3: HALF}), {1: FAST, 2: HALF}),
        # It measures another module.
        (Choices(2, {1: FAST, 2: HALF}), {}),
        # The kernel of the optimizer is of no module; the others took theirs over from the first.
        (Choices(1, {1: TunedSettings(fused_optimizer=True), 2: HALF}), None),
        (Choices(1, {1: replace(FAST, optimizers_judged=2), 2: HALF}), {1: UNFUSED, 2: HALF}),
    ],
)
def test_what_is_decided_for_each_module(
    second: Choices, decided: Mapping[int, TunedSettings] | None
) -> None:
    expected = {1: TunedSettings(fused_optimizer=True)} if decided is None else decided
    assert decide([Choices(1, {1: FAST, 2: HALF}), second]).settings == expected


@given(st.lists(st.dictionaries(st.integers(1, 3), SETTINGS, min_size=1), min_size=2, max_size=3))
def test_whatever_modules_processes_have_measured_none_drifts(
    chosen: list[dict[int, TunedSettings]],
) -> None:
    """The module that each process calls first is the first of its own."""
    store = HashStore()
    everyone = [Choices(next(iter(one)), one) for one in chosen]
    size = len(everyone)
    tasks = [
        lambda rank=rank: agreement(store, rank, size).settle(MEASURED, everyone[rank])
        for rank in range(size)
    ]
    nothing_drifts(chosen, together(*tasks))


@given(st.lists(MODULES, min_size=2, max_size=3), st.data())
def test_in_whatever_order_modules_are_called_none_drifts(
    orders: list[list[int]], data: st.DataObject
) -> None:
    """Known settings are decided before the first call of each module."""
    store, size = HashStore(), len(orders)
    chosen = [{number: data.draw(SETTINGS) for number in order} for order in orders]

    def call_all(rank: int) -> dict[int, TunedSettings]:
        one, found = agreement(store, rank, size), dict[int, TunedSettings]()
        for number, mine in chosen[rank].items():
            found |= one.settle(known_round(number), Choices(number, {number: mine}))
        return found

    nothing_drifts(chosen, together(*[lambda rank=rank: call_all(rank) for rank in range(size)]))


def nothing_drifts(
    chosen: list[dict[int, TunedSettings]], decided: list[dict[int, TunedSettings]]
) -> None:
    """All that have a module apply the same to it, and nothing that one of them did not choose."""
    for number in {number for one in chosen for number in one}:
        applied = [one[number] for one in decided if number in one]
        mine = [one[number] for one in chosen if number in one]
        assert len(applied) == len(mine)
        assert all(one == applied[0] for one in applied)
        assert common([*mine, applied[0]]) == applied[0]
        if len(mine) < len(chosen):
            assert applied[0] == PLAIN


def test_what_all_say_yes_to_is_done_by_all() -> None:
    store = HashStore()
    ones = [Consensus(store, rank, 3) for rank in range(3)]
    assert together(*(lambda one=one: one.agree("copy", yes=True) for one in ones)) == [True] * 3
    votes = zip(ones, (True, True, False), strict=True)
    asked = (lambda one=one, yes=yes: one.agree("copy", yes=yes) for one, yes in votes)
    assert together(*asked) == [False] * 3, "asked again, it is another question"


def test_without_one_process_nothing_is_done_by_any() -> None:
    store = HashStore()
    assert not agreement(store, 0, 2).agree("copy", yes=True)
    assert not agreement(store, 1, 2).agree("copy", yes=True), "the decision stands"
    assert not agreement(store, 1, 2).agree("other", yes=True), "the first one does not come"
    assert not agreement(store, 0, 2).agree("other", yes=True)


def test_a_look_is_due_to_all_at_the_check_after_the_one_at_which_it_was_planned() -> None:
    store = HashStore()
    first, second = (agreement(store, rank) for rank in range(2))
    first.plan_look(0, 20)
    assert not first.look_due(0, 20)
    assert not second.look_due(0, 20)
    assert first.look_due(0, 30)
    assert second.look_due(0, 30)
    assert not second.look_due(1, 30)


def test_the_kernel_alone_of_several_optimizers_is_of_no_module() -> None:
    kernel = TunedSettings(fused_optimizer=True, optimizers_judged=2)
    fast = replace(FAST, optimizers_judged=2)
    decided = decide([Choices(1, {1: fast, 2: HALF}), Choices(1, {1: kernel, 2: HALF})])
    assert decided.settings == {1: kernel}
