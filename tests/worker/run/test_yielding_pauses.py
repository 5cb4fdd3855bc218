"""A training leaves its device idle for the share it was asked for, and for no longer than that."""

from typing import Any

import pytest

from gpujob_api.report import YIELD_INTERVALS, YIELD_PERCENT_MAX, Reply
from gpujob_worker.device.memory import CpuMemory
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.meter import Meter
from gpujob_worker.run.session import Session
from gpujob_worker.run.yielding import PAUSE_SECONDS_MAX, Yielding

pytestmark = pytest.mark.any_torch


class Device:
    """A clock of host and device. The host is ahead of the device by `queued` seconds."""

    def __init__(self, *, capturing: bool = False) -> None:
        self.now = 0.0
        self.queued = 0.0
        self.capturing = capturing
        self.waits = 0

    def mark(self) -> float | None:
        return None if self.capturing else self.now + self.queued

    def happened(self, mark: Any) -> bool:
        return self.now >= mark

    def wait(self, mark: Any) -> None:
        self.waits += 1
        self.queued = max(0.0, self.now + self.queued - mark)
        self.now = max(self.now, mark)

    def seconds(self, first: Any, second: Any) -> float:
        return second - first


class Run:
    """A training whose steps take this long, on the host or on a device."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device or Device()
        self.pauses: list[float] = []
        self.meter = Meter(CpuMemory(), lambda: self.device.now)
        if device is not None:
            self.meter.use_events(device)
        self.yielding = Yielding(self.meter, lambda: self.device.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        assert not self.device.queued, "the device is busy during the pause"
        self.pauses.append(seconds)
        self.device.now += seconds

    def step(self, seconds: float) -> None:
        self.device.now += seconds
        self.meter.step_done()
        self.yielding.boundary()

    def launched_step(self, seconds: float) -> None:
        self.device.queued += seconds
        self.meter.step_done()
        self.yielding.boundary()


@pytest.mark.parametrize(("percent", "pause"), [(10, 0.1 / 9), (20, 0.025), (50, 0.1)])
def test_the_pauses_are_the_share_and_no_part_of_a_step(percent: int, pause: float) -> None:
    run = Run()
    run.step(0.1)
    run.yielding.ask(percent, 1000)
    for _ in range(10):
        run.step(0.1)
    assert run.pauses == pytest.approx([pause] * 9), "the first part began before the request"
    assert run.yielding.seconds == pytest.approx(9 * pause)
    timing = run.meter.window.timing(None)
    assert timing is not None
    assert timing.step_seconds == pytest.approx(0.1)
    assert run.meter.timed.seconds == pytest.approx(1.0)


def test_a_pause_is_bounded() -> None:
    run = Run()
    run.yielding.ask(YIELD_PERCENT_MAX, 1000)
    for _ in range(2):
        run.step(60.0)
    assert run.pauses == [PAUSE_SECONDS_MAX]


def test_a_request_ends_by_itself_and_another_one_counts_anew() -> None:
    run = Run()
    run.yielding.ask(50, 6.0)
    for _ in range(10):
        run.step(1.0)
    asked = len(run.pauses)
    assert 1 <= asked <= 5
    run.yielding.ask(50, 6.0)
    run.step(1.0)
    assert len(run.pauses) == asked, "the time in between was no part of a step"
    run.step(1.0)
    assert len(run.pauses) == asked + 1
    run.yielding.ask(0, 6.0)
    run.step(1.0)
    assert len(run.pauses) == asked + 1


def test_the_device_finishes_its_work_before_a_pause() -> None:
    run = Run(Device())
    run.yielding.ask(50, 1000)
    for _ in range(5):
        run.launched_step(0.1)
    assert run.pauses == pytest.approx([0.1] * 4)
    run.meter.settle()
    timing = run.meter.window.timing(None)
    assert timing is not None
    assert timing.step_seconds == pytest.approx(0.1)


def test_no_device_is_waited_for_unless_time_is_yielded() -> None:
    run = Run(Device())
    for _ in range(5):
        run.launched_step(0.1)
    assert run.device.waits == 0
    assert run.yielding.seconds == 0.0


def test_there_is_no_pause_while_a_graph_is_captured() -> None:
    run = Run(Device(capturing=True))
    run.yielding.ask(50, 1000)
    for _ in range(3):
        run.launched_step(0.1)
    assert run.pauses == []
    assert run.device.waits == 0


def test_a_session_passes_the_share_on_until_replies_stop() -> None:
    session = Session(Environment())
    now, slept = [0.0], list[float]()
    session.yielding = Yielding(session.meter, lambda: now[0], slept.append)
    assert session.report().yielded_seconds is None, "it is unknown whether it can yield"
    # Beyond the bound, and for an interval that no worker keeps.
    session._on_reply(Reply.from_text('{"intervalSeconds": 2.0, "yieldPercent": 99}'))
    for _ in range(2):
        session.yielding.boundary()
        now[0] += 0.2
    session.yielding.boundary()
    assert slept == pytest.approx([0.2, 0.2])
    assert session.report().yielded_seconds == pytest.approx(0.4)
    now[0] = YIELD_INTERVALS * 2.0
    session.yielding.boundary()
    session.yielding.boundary()
    assert len(slept) == 2
