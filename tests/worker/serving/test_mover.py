"""Parking needs room in the memory of the host; a lack of memory is no failure, any other error
is.
"""

from dataclasses import dataclass, field

import pytest
import torch

from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.serving.backend import Parking
from gpujob_worker.serving.metered import MeteredBackend
from gpujob_worker.serving.mover import HOST_MARGIN_BYTES, Mover
from tests.worker.serving.backends import Doubling

GIBIBYTE = 1024**3
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nadvice")
BROKEN = RuntimeError("CUDA error: an illegal memory access was encountered")


@dataclass
class Part:
    """Raises the next of its errors, if there is one."""

    host_bytes: int | None = GIBIBYTE
    errors: list[Exception] = field(default_factory=list[Exception])
    done: list[str] = field(default_factory=list[str])
    metered: MeteredBackend | None = None
    running_seconds: list[float] = field(default_factory=list[float])

    def _do(self, what: str) -> None:
        if self.metered is not None:
            self.running_seconds.append(self.metered.running_seconds())
        self.done.append(what)
        if self.errors:
            raise self.errors.pop(0)

    def park(self) -> None:
        self._do("park")

    def wake(self) -> None:
        self._do("wake")


class Unmovable:
    """Of tensors that a library made."""

    @property
    def host_bytes(self) -> int:
        raise RuntimeError("an invalid python storage\nadvice")

    def park(self) -> None:
        raise AssertionError

    def wake(self) -> None:
        raise AssertionError


@dataclass
class Clock:
    seconds: float = 100.0

    def __call__(self) -> float:
        self.seconds += 1.5
        return self.seconds


def mover(
    part: Parking | None, available_bytes: int | None = None
) -> tuple[Mover, MeteredBackend, Session]:
    session, backend = Session(Environment()), Doubling()
    backend.parking = part
    metered = MeteredBackend(backend, session, Clock())
    found = Mover(metered, session, available=lambda: available_bytes, clock=Clock())
    return found, metered, session


def test_both_moves_are_logged_and_count_as_running(capsys: pytest.CaptureFixture[str]) -> None:
    part = Part()
    found, metered, _ = mover(part, GIBIBYTE + HOST_MARGIN_BYTES)
    part.metered = metered
    assert found.can_park
    assert found.park()
    assert found.wake()
    assert part.done == ["park", "wake"]
    assert part.running_seconds == [1.5, 1.5], "a move that hangs is noticed as a batch is"
    assert metered.running_seconds() == 0.0
    assert metered.failure is None
    assert capsys.readouterr().err.splitlines() == [
        "gpujob: parked: 1 GiB in the host's memory, 1.5 s",
        "gpujob: awake, 1.5 s",
    ]


def test_without_room_in_the_hosts_memory_it_does_not_park(
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = Part()
    found, metered, session = mover(part, GIBIBYTE + HOST_MARGIN_BYTES // 2)
    assert found.can_park, "it is looked at when it has to park"
    assert not found.park()
    assert not found.can_park
    assert part.done == []
    assert metered.failure is None
    line = "cannot park: needs 1.25 GiB of the host's memory; 1.12 GiB are free"
    assert line in capsys.readouterr().err
    assert f"parking {line}" in session.log.lines


def test_unknown_room_does_not_keep_it_from_parking() -> None:
    found, _, _ = mover(Part(), None)
    assert found.park()


@pytest.mark.parametrize("part", [None, Part(host_bytes=None), Unmovable()])
def test_what_cannot_move_cannot_park(part: Parking | None) -> None:
    found, metered, _ = mover(part)
    assert not found.can_park
    assert not found.park()
    assert metered.failure is None


def test_a_lack_of_memory_for_the_copy_ends_parking_not_the_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, metered, _ = mover(Part(errors=[MemoryError("no pinned memory")]))
    assert not found.park()
    assert not found.can_park
    assert metered.failure is None
    assert "cannot park: MemoryError: no pinned memory" in capsys.readouterr().err


def test_a_wake_that_fails_for_lack_of_memory_is_logged_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = Part()
    found, metered, _ = mover(part)
    assert found.park()
    for _ in range(2):
        part.errors = [FULL, FULL, FULL]
        capsys.readouterr()
        assert [found.wake() for _ in range(4)] == [False, False, False, True]
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2
        assert lines[0] == (
            "gpujob: still parked, until the next attempt: OutOfMemoryError: CUDA out of memory. "
            "Tried to allocate 2.00 GiB"
        )
        assert lines[1].startswith("gpujob: awake")
    assert metered.failure is None
    assert found.can_park


@pytest.mark.parametrize("parks", [True, False])
def test_any_other_error_ends_the_process(parks: bool) -> None:
    part = Part()
    found, metered, _ = mover(part)
    if not parks:
        assert found.park()
    part.errors = [BROKEN]
    assert not (found.park() if parks else found.wake())
    assert metered.failure is BROKEN
