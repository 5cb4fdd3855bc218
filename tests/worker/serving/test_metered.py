"""Batches are the run's steps, and errors that no batch survives end the process."""

from dataclasses import dataclass, field

import pytest
import torch

from gpujob_worker.run.environment import Environment
from gpujob_worker.run.failure import MemoryLimitError
from gpujob_worker.run.session import Session
from gpujob_worker.serving.backend import Parking, Tensors
from gpujob_worker.serving.metered import MeteredBackend, breaks_device

X = {"x": torch.ones(3, 2)}


@dataclass
class Clock:
    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class TimedBackend:
    """Each batch takes two seconds of the clock, and may fail."""

    clock: Clock
    error: Exception | None = None
    name: str = "Timed"
    sizes: tuple[int, ...] | None = (1, 3)
    seen: list[float] = field(default_factory=list)
    metered: "MeteredBackend | None" = None
    parking: Parking | None = None

    def run(self, inputs: Tensors) -> Tensors:
        self.clock.seconds += 2.0
        if self.metered is not None:
            self.seen.append(self.metered.running_seconds())
        if self.error is not None:
            raise self.error
        return inputs


def metered(environment: Environment | None = None) -> tuple[MeteredBackend, TimedBackend, Session]:
    clock = Clock()
    session = Session(environment or Environment())
    session.meter.clock = clock
    backend = TimedBackend(clock)
    found = MeteredBackend(backend, session, clock)
    backend.metered = found
    return found, backend, session


def test_batches_are_steps_from_the_first_request_on() -> None:
    found, backend, session = metered()
    found.run(X)
    assert session.state.step == 0
    found.begin()
    for _ in range(2):
        backend.clock.seconds += 1000.0  # nothing is requested meanwhile
        assert found.run(X) is X
    assert session.state.step == 2
    timing = session.state.current
    assert timing is not None
    assert timing.step_seconds == 2.0
    assert timing.samples_per_second == 1.5
    assert timing.latency is not None
    assert timing.latency.p99_milliseconds == 2000.0
    assert (found.name, found.sizes) == ("Timed", (1, 3))


def test_the_time_of_the_present_batch_shows_a_hang() -> None:
    found, backend, _ = metered()
    assert found.running_seconds() == 0.0
    found.run(X)
    assert backend.seen == [2.0]
    assert found.running_seconds() == 0.0


@pytest.mark.parametrize(
    ("error", "breaks"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (ValueError("a poisoned sample"), False),
    ],
)
def test_an_error_of_the_device_ends_the_process(error: Exception, breaks: bool) -> None:
    assert breaks_device(error) == breaks
    found, backend, session = metered()
    found.begin()
    backend.error = error
    with pytest.raises(type(error)):
        found.run(X)
    assert found.failure is (error if breaks else None)
    assert session.state.step == 0
    assert found.running_seconds() == 0.0


def test_the_first_error_of_the_device_is_kept() -> None:
    found, backend, _ = metered()
    first = backend.error = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError):
        found.run(X)
    backend.error = RuntimeError("CUDA error: again")
    with pytest.raises(RuntimeError):
        found.run(X)
    assert found.failure is first


def test_memory_above_the_cpu_card_ends_the_process_and_keeps_the_answer() -> None:
    found, _, session = metered(Environment(cpu_card_bytes=2**60))
    found.begin()
    # Everything counts as too much from now on.
    session.environment = Environment(cpu_card_bytes=1)
    assert found.run(X) is X
    assert isinstance(found.failure, MemoryLimitError)
    assert found.failure.needed_bytes > 1
    assert session.state.step == 1


def test_a_model_that_exceeds_the_cpu_card_is_not_served() -> None:
    found, _, _ = metered(Environment(cpu_card_bytes=1))
    with pytest.raises(MemoryLimitError, match="CPU card out of memory"):
        found.begin()


def test_the_log_has_the_traceback_of_a_failed_request_and_none_of_the_warm_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, backend, _ = metered()
    backend.error = ValueError("a poisoned sample")
    with pytest.raises(ValueError, match="poisoned"):
        found.run(X)
    assert capsys.readouterr().err == ""
    found.begin()
    with pytest.raises(ValueError, match="poisoned"):
        found.run(X)
    assert "raise self.error\nValueError: a poisoned sample" in capsys.readouterr().err
