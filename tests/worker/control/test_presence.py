"""What must be the same in all is applied in none where one of them has another worker, or none."""

from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gpujob_api.settings import Precision, Settings
from gpujob_worker.control import presence
from gpujob_worker.control.presence import SECONDS_MAX, absence, digest
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session


class Clock:
    now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds


def found(store: Any, size: int, clock: Clock) -> str | None:
    return absence(store, size, "d1", clock=lambda: clock.now, pause=clock.pause)


def test_all_are_there() -> None:
    store, clock = HashStore(), Clock()
    for rank in range(3):
        store.set(f"present/{rank}", "d1")
    assert found(store, 3, clock) is None
    assert clock.now == 0


def test_one_is_missing_or_differs() -> None:
    store, clock = HashStore(), Clock()
    store.set("present/0", "d1")
    text = "processes 1, 2 of 3 run without the worker; nothing is shared with them"
    assert found(store, 3, clock) == text
    assert clock.now == pytest.approx(SECONDS_MAX, abs=0.1)
    store.set("present/1", "d1")
    store.set("present/2", "d2")
    assert found(store, 3, clock) == "processes 2 of 3 have other settings or another torch"
    many = found(HashStore(), 12, Clock())
    assert many is not None
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 4 more of 12" in many


def session(**settings: Any) -> Session:
    return Session(Environment(settings=Settings(**settings)))


def test_what_is_shared_is_switched_off_and_what_is_each_ones_own_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence, "process_group", lambda: (0, 2))
    one = session()
    one.joins(0, 2)
    store: Any = HashStore()
    store.set("present/0", digest(one))
    store.set("present/1", "another")
    reason = presence.require_all(one, store)
    assert reason == "processes 1 of 2 have other settings or another torch"
    assert one.log.lines == (f"processes skipped: {reason}",)
    assert not any(one.features.allows(name) for name in ("precision", "optimizer", "compile"))
    assert one.features.allows("batch_split")
    assert one.features.allows("data_loader")
    other = session()
    other.joins(1, 2)
    store.set("present/1", digest(other))
    assert presence.require_all(other, store) is None
    assert other.features.allows("precision")


def test_settings_that_differ_are_told_apart() -> None:
    assert digest(session()) == digest(session())
    assert digest(session(precision=Precision.BFLOAT16)) != digest(session())
    less = session()
    less.switch_off(["compile"])
    assert digest(less) != digest(session())


def test_one_process_asks_nobody() -> None:
    assert presence.require_all(session()) is None
