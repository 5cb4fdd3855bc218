"""Requests that prove a choice: their moments, their count, and when they disprove it."""

import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gpujob_api.codec import FieldError
from gpujob_api.serving import BackendName, Objective, Quantization, ServingSettings
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.backends.build import FILES
from gpujob_worker.serving.batcher import Overloaded
from gpujob_worker.serving.choosing import proof
from gpujob_worker.serving.choosing.assignment import Assignment
from gpujob_worker.serving.choosing.proof import load_for, samples_per_second
from gpujob_worker.serving.choosing.requests import (
    CHANCE,
    Load,
    Seen,
    moments,
    problem,
    send,
    tail,
)
from gpujob_worker.serving.choosing.timing import SizeTime, Timing
from gpujob_worker.serving.eager import EagerBackend
from gpujob_worker.serving.plan import Plan
from gpujob_worker.serving.signature import signature

OBJECTIVE = Objective(100.0, 99.0)
ONE = ({"x": torch.zeros(1, 2)}, {"x": torch.ones(1, 2)})


@dataclass(slots=True)
class Clock:
    """Time that passes by sleeping."""

    time: float = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


@dataclass(slots=True)
class Server:
    """Answers at once, as the script has it for each request."""

    clock: Clock
    script: str = ""
    submit_seconds: float = 0.0
    inputs: list[Tensors] = field(default_factory=list[Tensors])
    times: list[float] = field(default_factory=list[float])

    def submit(self, inputs: Tensors, samples: int) -> Future[Tensors]:
        assert samples == 1
        number = len(self.inputs)
        self.inputs.append(inputs)
        self.times.append(self.clock.time)
        self.clock.time += self.submit_seconds
        what = self.script[number] if number < len(self.script) else "."
        future: Future[Tensors] = Future()
        if what == "o":
            raise Overloaded(0.1)
        if what == "f":
            future.set_exception(ValueError("poisoned"))
        elif what == "l":
            LateFuture.later(self.clock, future)
        elif what == "c":
            future.cancel()
            future.set_running_or_notify_cancel()
        elif what != "n":
            future.set_result({"y": inputs["x"]})
        return future


class LateFuture:
    """Answers a future when its callback is added, half a second later."""

    @staticmethod
    def later(clock: Clock, future: Future[Tensors]) -> None:
        add = future.add_done_callback

        def added(callback: object) -> None:
            add(callback)  # type: ignore[arg-type]
            clock.time += 0.5
            future.set_result({})

        future.add_done_callback = added  # type: ignore[method-assign,assignment]


def sent(script: str, arrivals: list[float], submit_seconds: float = 0.0) -> tuple[Seen, Server]:
    clock = Clock()
    server = Server(clock, script, submit_seconds)
    seen = send(server, ONE, arrivals, 0.1, clock.now, clock.sleep, answer_seconds=-1.0)
    return seen, server


def test_each_request_is_sent_at_its_moment_with_the_next_sample() -> None:
    seen, server = sent("", [0.5, 0.75, 4.0])
    assert server.times == [100.5, 100.75, 104.0]
    assert [float(one["x"][0, 0]) for one in server.inputs] == [0.0, 1.0, 0.0]
    assert seen == Seen(sent=3, within=3)


def test_requests_are_counted_by_what_became_of_them() -> None:
    seen, _ = sent(".of.cn", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    # One is refused, one fails, one is cancelled, and one is never answered.
    assert seen == Seen(sent=6, within=2, refused=1, failed=2)


def test_an_answer_after_the_objective_is_not_within() -> None:
    seen, server = sent("l..", [0.125, 0.25, 1.0])
    assert seen == Seen(sent=3, within=2)
    # The second one was due while the first was late, and follows at once.
    assert server.times == [100.125, 100.625, 101.0]


def test_a_sender_that_is_too_slow_ends() -> None:
    arrivals = [0.125 * (number + 1) for number in range(8)]
    seen, server = sent("", arrivals, submit_seconds=0.5)
    # The last one was due after a second. Twice as long is the most.
    assert server.times == [100.125, 100.625, 101.125, 101.625]
    assert seen.sent == 4


def test_no_moments_are_no_requests() -> None:
    assert sent("", [])[0] == Seen()


@given(st.floats(0.01, 1e5), st.integers(1, 500), st.floats(0.1, 20), st.integers(0, 99))
def test_moments_are_ascending_and_limited(
    rate: float, requests_max: int, seconds_max: float, seed: int
) -> None:
    found = moments(Load(rate, requests_max, seconds_max), seed)
    assert len(found) <= requests_max
    assert all(0 < one <= seconds_max for one in found)
    assert all(before <= after for before, after in pairwise(found))


def test_moments_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    found = moments(Load(200.0, requests_max=2000, seconds_max=60.0))
    gaps = [after - before for before, after in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert len(found) == 2000
    assert 0.9 < 200 * mean < 1.1
    assert 0.9 < deviation / mean < 1.1
    assert moments(Load(0.0)) == []


def test_the_limits_of_a_load_are_checked() -> None:
    with pytest.raises(FieldError, match="requestsMax"):
        Load(1.0, requests_max=0)


@given(st.integers(1, 40), st.integers(0, 40), st.floats(0.01, 0.5))
def test_the_tail_is_the_sum_of_the_distribution(count: int, late: int, share: float) -> None:
    late = min(late, count)
    expected = sum(
        math.comb(count, one) * share**one * (1 - share) ** (count - one)
        for one in range(late, count + 1)
    )
    assert tail(count, late, share) == pytest.approx(expected, abs=1e-9)


def test_the_bound_allows_what_chance_may_do() -> None:
    load = Load(500.0)
    # 20 of 2,000 are expected to be late at 99 %.
    verdicts = [problem(Seen(2000, 2000 - late), load, OBJECTIVE) for late in range(60)]
    first = next(late for late, verdict in enumerate(verdicts) if verdict is not None)
    assert tail(2000, first - 1, 0.01) >= CHANCE > tail(2000, first, 0.01)
    assert 30 <= first <= 33
    assert all(verdict is not None for verdict in verdicts[first:])


def test_few_requests_disprove_little() -> None:
    load = Load(1.0)
    assert problem(Seen(10, 9), load, OBJECTIVE) is None
    assert problem(Seen(10, 5), load, OBJECTIVE) is not None
    assert problem(Seen(), load, OBJECTIVE) is None


def test_one_late_request_of_many_does_not_disprove_an_objective_of_all() -> None:
    load, every = Load(500.0), Objective(100.0, 100.0)
    assert problem(Seen(2000, 1999), load, every) is None
    assert problem(Seen(2000, 1990), load, every) == (
        "99.5 % of 2,000 requests at 500 a second were answered within 100 ms, 100 % are needed"
    )


def test_refused_and_failed_requests_are_named() -> None:
    text = problem(Seen(1000, 400, refused=500, failed=100), Load(50.0), OBJECTIVE)
    assert text is not None
    assert text.endswith(", 99 % are needed, 500 refused, 100 failed")


def test_a_file_of_the_measurement_is_loaded_instead_of_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Linear(2, 2).eval()
    inputs = {"input": torch.randn(8, 2)}
    shape = signature(net, inputs)
    loaded: list[Path] = []

    def load_file(plan: Plan, path: Path, *_: object) -> EagerBackend:
        loaded.append(path)
        return EagerBackend(net, shape)

    monkeypatch.setattr(proof, "load_file", load_file)
    path = tmp_path / FILES[BackendName.AOT_INDUCTOR]
    path.write_text("compiled")
    folder = str(tmp_path)
    plan = (BackendName.AOT_INDUCTOR, Precision.FLOAT32, Quantization.OFF)
    load = Load(1000.0, requests_max=3)
    seen = proof.answered(Assignment(folder, folder, *plan, (1, 2)), load, net, shape, inputs)
    assert loaded == [path]
    assert 1 <= seen.sent <= 3


def sizes(*times: tuple[int, float]) -> Timing:
    return Timing(tuple(SizeTime(size, took, took, took, 9) for size, took in times))


def test_the_capacity_is_that_of_the_best_size_within_the_objective() -> None:
    # 80 ms are the most, and a request may wait for one batch.
    timing = sizes((1, 0.01), (4, 0.02), (16, 0.05))
    assert samples_per_second(timing, OBJECTIVE) == pytest.approx(200.0)
    assert samples_per_second(sizes((1, 1.0)), OBJECTIVE) == 0.0
    assert load_for(timing, ServingSettings(objective=OBJECTIVE)).rate == pytest.approx(120.0)
    given = ServingSettings(objective=OBJECTIVE, expected_rate=7.0)
    assert load_for(timing, given) == Load(7.0)
