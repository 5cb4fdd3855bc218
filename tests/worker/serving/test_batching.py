"""The rules of batching in virtual time: properties under any arrivals, examples, and faults."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.batching.virtual import Played, play, poisson
from gpujob_api.serving import Batching, BatchingPolicy, Objective
from gpujob_worker.serving.batch_time import MARGIN_UNKNOWN, BatchTimes, Line
from gpujob_worker.serving.batching import (
    AUTO_SIZE_MAX,
    REQUEST_FACTOR,
    RETRY_SECONDS_RANGE,
    BatchQueue,
    Dispatch,
    Idle,
    Part,
    Refused,
    WaitUntil,
    padded_size,
)

pytestmark = pytest.mark.any_torch

LINE = Line(0.002, 0.0001)
OBJECTIVE_SECONDS = 0.02
IMMEDIATE, DEADLINE, OFF, AUTO = (
    BatchingPolicy.IMMEDIATE,
    BatchingPolicy.DEADLINE,
    BatchingPolicy.OFF,
    BatchingPolicy.AUTO,
)
MARGIN = 1 + MARGIN_UNKNOWN


def queue(
    policy: BatchingPolicy = DEADLINE,
    *,
    line: Line = LINE,
    max_size: int | None = None,
    sizes: tuple[int, ...] | None = None,
    queue_max: int = 1024,
    objective_seconds: float = OBJECTIVE_SECONDS,
) -> BatchQueue[int]:
    objective = Objective(1000 * objective_seconds)
    batching = Batching(policy, max_size)
    return BatchQueue[int](objective, batching, BatchTimes(line), sizes=sizes, queue_max=queue_max)


def exact(size: int, now: float) -> float:
    return LINE.seconds(size)


def dispatched(tried: BatchQueue[int], now: float) -> Dispatch[int]:
    action = tried.next(now)
    assert isinstance(action, Dispatch), action
    return action


def dispatched_after(tried: BatchQueue[int], now: float) -> list[int]:
    """Ends the running batch, without an observation, and returns the next one's requests."""
    tried.finished(now, None)
    return [part.request for part in dispatched(tried, now).parts]


def waits_until(tried: BatchQueue[int], now: float) -> float:
    action = tried.next(now)
    assert isinstance(action, WaitUntil), action
    return action.seconds


# Properties

gaps = st.one_of(
    st.just(0.0), st.floats(0, 0.002), st.floats(0, 0.03), st.sampled_from([0.0001, 0.002, 0.5])
)
policies = st.sampled_from([IMMEDIATE, DEADLINE, OFF])
sizes_of_backends = st.sampled_from([None, (1, 4, 16, 64), (16,), (2, 12, 200)])
few_samples = st.one_of(st.just(1), st.integers(1, 40))
arrivals_of_one = st.lists(st.tuples(gaps, st.just(1)), max_size=120)
arrivals_of_many = st.lists(st.tuples(gaps, few_samples), max_size=80)


def played(
    tried: BatchQueue[int], arrivals: Sequence[tuple[float, int]]
) -> tuple[Played, list[float], list[int]]:
    now, moments = 0.0, list[float]()
    for gap, _ in arrivals:
        now += gap
        moments.append(now)
    counts = [count for _, count in arrivals]
    return play(moments, tried, exact, counts), moments, counts


@given(arrivals=arrivals_of_many, policy=policies, sizes=sizes_of_backends)
def test_each_request_is_refused_at_once_or_answered_once_in_the_order_of_arrivals(
    arrivals: list[tuple[float, int]], policy: BatchingPolicy, sizes: tuple[int, ...] | None
) -> None:
    found, _, counts = played(queue(policy, sizes=sizes), arrivals)
    parts = [part for _, batch in found.dispatched for part in batch.parts]
    expected = [index for index in range(len(arrivals)) if index not in found.refused]
    # In order, and each sample once.
    flat = [(part.request, part.start + n) for part in parts for n in range(part.samples)]
    assert flat == [(index, n) for index in expected for n in range(counts[index])]
    assert sorted(found.latencies) == expected


@given(arrivals=arrivals_of_many, policy=policies, sizes=sizes_of_backends)
def test_every_batch_has_a_size_that_the_backend_takes(
    arrivals: list[tuple[float, int]], policy: BatchingPolicy, sizes: tuple[int, ...] | None
) -> None:
    found, _, _ = played(queue(policy, sizes=sizes), arrivals)
    for _, batch in found.dispatched:
        assert batch.samples == sum(part.samples for part in batch.parts) <= batch.size
        # The largest size follows the measured times.
        assert batch.size <= AUTO_SIZE_MAX
        assert sizes is None or batch.size in sizes
        assert policy is not OFF or len(batch.parts) == 1


@given(arrivals=arrivals_of_many, policy=policies, sizes=sizes_of_backends)
def test_every_admitted_request_is_answered_by_its_deadline_on_an_exact_device(
    arrivals: list[tuple[float, int]], policy: BatchingPolicy, sizes: tuple[int, ...] | None
) -> None:
    tried = queue(policy, sizes=sizes)
    size_max = tried.size_max
    found, _, counts = played(tried, arrivals)
    for index, latency in found.latencies.items():
        whole, rest = divmod(counts[index], size_max)
        own = whole * LINE.seconds(padded_size(size_max, sizes))
        own += LINE.seconds(padded_size(rest, sizes)) if rest else 0
        whole_batch = LINE.seconds(padded_size(size_max, sizes))
        allowed = max(OBJECTIVE_SECONDS, 2 * MARGIN * max(own, whole_batch))
        assert latency <= allowed + 1e-9


@given(arrivals=arrivals_of_one, policy=st.sampled_from([IMMEDIATE, DEADLINE]))
def test_single_samples_keep_the_objective(
    arrivals: list[tuple[float, int]], policy: BatchingPolicy
) -> None:
    found, _, _ = played(queue(policy), arrivals)
    assert all(latency <= OBJECTIVE_SECONDS + 1e-9 for latency in found.latencies.values())


@given(arrivals=arrivals_of_many, policy=policies)
def test_a_refused_request_would_have_been_late(
    arrivals: list[tuple[float, int]], policy: BatchingPolicy
) -> None:
    """The work before it, each request alone, does not fit into the objective beside a batch."""
    tried = queue(policy)
    size_max = 1 if policy is OFF else tried.size_max
    found, moments, counts = played(tried, arrivals)
    for index, refused in found.refused.items():
        now = moments[index]
        ahead = sum(
            LINE.seconds(counts[other])
            for other in range(index)
            if other not in found.refused and moments[other] + found.latencies[other] > now
        )
        own = MARGIN * LINE.seconds(max(size_max, counts[index]))
        assert ahead + own > OBJECTIVE_SECONDS
        assert refused.retry_after_seconds <= ahead + own


@given(arrivals=arrivals_of_many, policy=st.sampled_from([IMMEDIATE, OFF]))
def test_immediate_and_off_never_leave_the_device_idle_with_a_queue(
    arrivals: list[tuple[float, int]], policy: BatchingPolicy
) -> None:
    found, _, _ = played(queue(policy), arrivals)
    assert found.waits == 0


@given(seed=st.integers(0, 1000), rate=st.sampled_from([50, 200, 500, 2000]))
def test_waiting_for_deadlines_takes_fewer_batches(seed: int, rate: int) -> None:
    moments = poisson(rate, 200, seed)
    late = play(moments, queue(DEADLINE), exact)
    soon = play(moments, queue(IMMEDIATE), exact)
    assert len(late.dispatched) <= len(soon.dispatched)
    assert late.busy_seconds <= soon.busy_seconds + 1e-9
    assert not late.refused
    assert late.percentile(100) <= OBJECTIVE_SECONDS + 1e-9


# When a batch is dispatched


def test_an_empty_queue_is_idle() -> None:
    assert isinstance(queue().next(0.0), Idle)


def test_deadline_waits_until_one_more_sample_would_be_late() -> None:
    tried = queue()
    assert tried.offer(1, 1, 10.0) is None
    first = waits_until(tried, 10.0)
    assert first == pytest.approx(10.0 + OBJECTIVE_SECONDS - MARGIN * LINE.seconds(2))
    assert tried.offer(2, 3, 10.001) is None
    # The oldest one counts, for a batch of four and one more.
    second = waits_until(tried, 10.001)
    assert second == pytest.approx(10.0 + OBJECTIVE_SECONDS - MARGIN * LINE.seconds(5))
    batch = dispatched(tried, second)
    assert batch.parts == (Part(1, 0, 1), Part(2, 0, 3))
    assert (batch.samples, batch.size) == (4, 4)


@pytest.mark.parametrize("share", [0.4, 0.55, 0.7, 0.9, 1.5, 4.0])
def test_a_slow_model_is_not_made_later_than_the_objective_by_waiting(share: float) -> None:
    """One sample takes this share of the objective. Beyond a half, requests are accepted for longer
    than the objective, which is no time to wait in.
    """
    line = Line(share * OBJECTIVE_SECONDS, 0.0001)
    tried = queue(line=line)
    assert tried.offer(1, 1, 0.0) is None
    action = tried.next(0.0)
    start = action.seconds if isinstance(action, WaitUntil) else 0.0
    assert start == pytest.approx(max(0.0, OBJECTIVE_SECONDS - MARGIN * line.seconds(2)))


def test_the_earliest_deadline_counts_whatever_the_order() -> None:
    tried = queue()
    tried.offer(1, 1, 0.0, deadline=1.0)
    tried.offer(2, 1, 0.0, deadline=0.5)
    assert waits_until(tried, 0.0) == pytest.approx(0.5 - MARGIN * LINE.seconds(3))


def test_a_request_that_would_make_others_late_begins_another_batch() -> None:
    tried = queue()
    tried.offer(1, 1, 0.0)
    # One sample more is in time, 40 are not.
    assert tried.offer(2, 40, 0.017) is None
    first = dispatched(tried, 0.017)
    assert [part.request for part in first.parts] == [1]
    tried.finished(0.017 + LINE.seconds(1), 1)
    waits_until(tried, 0.017 + LINE.seconds(1))


def test_a_full_batch_does_not_wait() -> None:
    tried = queue(max_size=4)
    for request in range(4):
        assert tried.offer(request, 1, 0.0) is None
    assert dispatched(tried, 0.0).samples == 4


def test_a_batch_whose_fixed_part_no_longer_counts_does_not_wait() -> None:
    tried = queue(line=Line(0.0001, 0.001), max_size=64, objective_seconds=1.0)
    tried.offer(1, 1, 0.0)
    assert waits_until(tried, 0.0) > 0.9
    tried.offer(2, 2, 0.0)
    assert dispatched(tried, 0.0).samples == 3


def test_late_wake_ups_make_the_next_batches_earlier() -> None:
    tried = queue()
    tried.offer(1, 1, 0.0)
    first = waits_until(tried, 0.0)
    tried.next(first + 0.003)
    tried.finished(first + 0.003 + LINE.seconds(1), 1)
    tried.offer(2, 1, 100.0)
    assert waits_until(tried, 100.0) == pytest.approx(100.0 + first - 0.003)


def test_auto_waits_only_beside_others() -> None:
    tried = queue(AUTO)
    assert tried.policy is IMMEDIATE
    tried.shared = True
    assert tried.policy is DEADLINE
    tried.offer(1, 1, 0.0)
    waits_until(tried, 0.0)
    tried.shared = False
    dispatched(tried, 0.0)


def test_a_chosen_policy_does_not_depend_on_others() -> None:
    for policy in (IMMEDIATE, DEADLINE, OFF):
        tried = queue(policy)
        tried.shared = True
        assert tried.policy is policy


def test_draining_does_not_wait() -> None:
    tried = queue()
    tried.offer(1, 1, 0.0)
    waits_until(tried, 0.0)
    tried.draining = True
    dispatched(tried, 0.0)


def test_off_executes_each_request_alone() -> None:
    tried = queue(OFF)
    for request in range(3):
        assert tried.offer(request, 2, 0.0) is None
    for request in range(3):
        assert dispatched(tried, 0.0).parts == (Part(request, 0, 2),)
        tried.finished(0.0, 2)


def test_calls_in_the_wrong_order_are_refused() -> None:
    tried = queue(IMMEDIATE)
    with pytest.raises(RuntimeError, match="finished: no batch"):
        tried.finished(0.0, 1)
    tried.offer(1, 1, 0.0)
    tried.next(0.0)
    with pytest.raises(RuntimeError, match="next: a batch is being executed"):
        tried.next(0.0)


# Sizes


@pytest.mark.parametrize(
    ("line", "objective_seconds", "expected"),
    [
        (Line(0.001, 0.001), 0.1, 39),
        (Line(0.001, 0.0), 0.1, AUTO_SIZE_MAX),
        (Line(0.001, 1e-9), 0.1, AUTO_SIZE_MAX),
        # One sample takes more than half of the objective: all of it.
        (Line(0.05, 0.01), 0.1, 3),
        (Line(0.0, 0.06), 0.1, 1),
        # One sample takes longer than the objective: twice its time.
        (Line(0.4, 0.11), 0.1, 5),
        (Line(0.5, 0.0), 0.1, AUTO_SIZE_MAX),
    ],
)
def test_the_largest_batch_leaves_time_to_wait_for_another_one(
    line: Line, objective_seconds: float, expected: int
) -> None:
    assert queue(line=line, objective_seconds=objective_seconds).size_max == expected


def test_a_size_by_hand_is_kept() -> None:
    assert queue(max_size=1000).size_max == 1000
    assert queue(max_size=1000, sizes=(1, 8, 64)).size_max == 64
    assert queue(max_size=20, sizes=(1, 8, 64)).size_max == 8
    # The backend takes nothing smaller.
    assert queue(max_size=2, sizes=(8, 64)).size_max == 8


def test_the_largest_batch_follows_the_measured_times() -> None:
    tried = queue(IMMEDIATE)
    before = tried.size_max
    for _ in range(50):
        tried.offer(1, 8, 0.0)
        batch = dispatched(tried, 0.0)
        tried.finished(2 * LINE.seconds(batch.size), batch.size)
    assert before == 60
    assert 20 <= tried.size_max < 40


def test_memory_bounds_later_batches() -> None:
    tried = queue(max_size=64, sizes=(1, 8, 64))
    tried.limit_size(32)
    assert tried.size_max == 8
    assert queue(max_size=64).size_max == 64
    tried = queue(max_size=64)
    tried.limit_size(5)
    assert tried.size_max == 5
    tried.limit_size(None)
    assert tried.size_max == 64


def test_an_input_beyond_every_size_is_split_up_to_a_limit() -> None:
    tried = queue(IMMEDIATE, sizes=(1, 4))
    assert tried.samples_max == 4 * REQUEST_FACTOR
    assert tried.offer(7, 4 * REQUEST_FACTOR - 1, 0.0) is None
    seen: list[Part[int]] = []
    while isinstance(action := tried.next(0.0), Dispatch):
        assert action.size in (1, 4)
        seen += action.parts
        tried.finished(0.0, None)
    assert [part.start for part in seen] == [4 * index for index in range(REQUEST_FACTOR)]
    assert seen[-1].samples == 3
    with pytest.raises(ValueError, match=r"samples: must be 1 to 16, 4 times .* batch; got 17"):
        tried.offer(8, 4 * REQUEST_FACTOR + 1, 0.0)
    with pytest.raises(ValueError, match="got 0"):
        tried.offer(8, 0, 0.0)


def test_the_largest_request_does_not_depend_on_measurements() -> None:
    slow = queue(IMMEDIATE, line=Line(1.0, 1.0))
    assert slow.size_max < 4
    assert slow.samples_max == REQUEST_FACTOR * AUTO_SIZE_MAX
    assert slow.offer(1, 100, 0.0) is None
    parts = 0
    size_max = slow.size_max
    while isinstance(slow.next(0.0), Dispatch):
        slow.finished(0.0, None)
        parts += 1
    assert parts == -(-100 // size_max)
    assert queue(max_size=30, sizes=(4, 16, 64)).samples_max == REQUEST_FACTOR * 16
    limited = queue(max_size=64)
    limited.limit_size(2)
    assert limited.samples_max == REQUEST_FACTOR * 64


def test_sizes_are_padded_up() -> None:
    assert [padded_size(n, (2, 8)) for n in (1, 2, 3, 8)] == [2, 2, 8, 8]
    assert padded_size(5, None) == 5
    with pytest.raises(ValueError, match="samples: must be at most 8, the largest batch; got 9"):
        padded_size(9, (2, 8))


# Admission and faults


@pytest.mark.parametrize("policy", [IMMEDIATE, DEADLINE, OFF])
def test_a_deadline_that_has_passed_is_refused(policy: BatchingPolicy) -> None:
    tried = queue(policy)
    refused = tried.offer(1, 1, 10.0, deadline=9.0)
    assert refused is not None
    assert refused.retry_after_seconds == pytest.approx(1.0 + MARGIN * LINE.seconds(1))
    assert tried.queued == 0
    assert isinstance(tried.next(10.0), Idle)


def test_a_full_queue_refuses() -> None:
    tried = queue(OFF, queue_max=2, objective_seconds=10.0)
    assert tried.offer(1, 1, 0.0) is None
    assert tried.offer(2, 1, 0.0) is None
    refused = tried.offer(3, 1, 0.0)
    assert refused is not None
    assert refused.retry_after_seconds == pytest.approx(2 * LINE.seconds(1))
    dispatched(tried, 0.0)
    assert tried.offer(3, 1, 0.0) is None


def test_all_parts_of_a_request_fit_into_the_queue_or_none() -> None:
    tried = queue(IMMEDIATE, queue_max=2, max_size=4)
    assert tried.offer(1, 12, 0.0) is not None
    assert tried.queued == 0
    assert tried.offer(1, 8, 0.0) is None
    assert tried.queued == 2


def test_an_objective_that_the_model_cannot_keep_does_not_refuse_everything() -> None:
    tried = queue(IMMEDIATE, line=Line(0.3, 0.0))
    assert tried.offer(1, 1, 0.0) is None
    dispatched(tried, 0.0)
    # Twice the time of a batch: that of the running one, and one more.
    assert tried.offer(2, 1, 0.1) is None
    assert tried.offer(3, 1, 0.2) is None
    # A third batch would end later than that.
    assert tried.offer(4, 255, 0.2) is not None
    assert dispatched_after(tried, 0.3) == [2, 3]


def test_a_prior_that_is_far_too_slow_is_corrected_by_the_first_request() -> None:
    tried = queue(IMMEDIATE, line=Line(5.0, 1.0))
    assert tried.offer(1, 1, 0.0) is None
    batch = dispatched(tried, 0.0)
    tried.finished(LINE.seconds(1), batch.size)
    assert tried.times.seconds(1) == pytest.approx(LINE.seconds(1), rel=0.01)


def test_a_hanging_device_refuses_instead_of_queueing() -> None:
    tried = queue(IMMEDIATE)
    tried.offer(0, 1, 0.0)
    dispatched(tried, 0.0)
    moments = [0.001 * step for step in range(1, 1000)]
    admitted = [moment for moment in moments if tried.offer(1, 1, moment) is None]
    assert admitted
    # Nobody is admitted once the batch is late by the objective.
    assert max(admitted) < 2 * OBJECTIVE_SECONDS
    refused = tried.offer(1, 1, 10_000.0)
    assert refused == Refused(RETRY_SECONDS_RANGE[1])
    # It answers, and all is as before.
    tried.finished(10_000.0, 1)
    while isinstance(tried.next(10_000.0), Dispatch):
        tried.finished(10_000.0, None)
    assert tried.offer(1, 1, 10_001.0) is None
    assert tried.times.seconds(1) < OBJECTIVE_SECONDS or tried.times.observed == 1


def test_a_burst_of_ten_times_the_load_keeps_the_objective_of_the_admitted() -> None:
    """1,000 requests a second, and 40,000 in one second, twice of what the device can do."""
    calm = poisson(1000, 1000, 1)
    burst = [calm[-1] + moment for moment in poisson(40_000, 8000, 2)]
    after = [burst[-1] + moment for moment in poisson(1000, 500, 3)]
    for policy in (IMMEDIATE, DEADLINE):
        tried = queue(policy, queue_max=4096)
        most = tried.size_max / LINE.seconds(tried.size_max)
        found = play([*calm, *burst, *after], tried, exact)
        assert found.percentile(100) <= OBJECTIVE_SECONDS
        assert not any(index < 1000 for index in found.refused)
        answered = sum(1 for index in found.latencies if 1000 <= index < 9000)
        assert answered >= 0.9 * most * (burst[-1] - burst[0])
        # The queue is short at once after it.
        assert not any(index > 9000 + 100 for index in found.refused)


def test_a_neighbour_that_doubles_the_times_makes_few_late() -> None:
    moments = poisson(400, 4000, 5)

    def shared(size: int, now: float) -> float:
        return LINE.seconds(size) * (2 if now > 5 else 1)

    found = play(moments, queue(DEADLINE), shared)
    late = [index for index, value in found.latencies.items() if value > OBJECTIVE_SECONDS]
    assert all(moments[index] > 4.9 for index in late)
    assert len(late) <= 60
    assert all(moments[index] < 5.6 for index in late)
    assert len(found.latencies) >= 0.98 * len(moments)


def test_slow_batches_now_and_then_are_within_the_percentile() -> None:
    moments = poisson(400, 6000, 6)
    count = 0

    def noisy(size: int, now: float) -> float:
        nonlocal count
        count += 1
        return LINE.seconds(size) * (1.0, 1.1, 1.2, 1.3)[count % 4] * (3 if count % 400 == 0 else 1)

    found = play(moments, queue(DEADLINE), noisy)
    assert found.within(OBJECTIVE_SECONDS) >= 0.99 * len(moments)


def test_what_is_queued_can_be_given_up() -> None:
    tried = queue()
    tried.offer(1, 1, 0.0)
    tried.offer(2, 2, 0.0)
    assert [part.request for part in tried.abandon()] == [1, 2]
    assert tried.queued == 0
    assert isinstance(tried.next(0.0), Idle)
    assert tried.abandon() == []
