"""Every part whose silence means that the operator is blind is asked for its last sign of life."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from gpujob_operator.telemetry.life_signs import (
    CYCLE_AGE_SECONDS_MAX,
    FAILING_SECONDS_MAX,
    WATCH_AGE_SECONDS_MAX,
    LifeSigns,
)

NOW = 10_000.0


@dataclass
class FakeWatch:
    name: str
    alive_at: float = NOW
    listed: bool = True


@dataclass
class FakeKopf:
    silent: dict[str, float] = field(default_factory=dict[str, float])
    missing: list[str] = field(default_factory=list[str])

    def silent_seconds(self) -> Mapping[str, float]:
        return self.silent

    def unlisted(self) -> list[str]:
        return self.missing


def signs(
    *watches: FakeWatch,
    kopf: FakeKopf | None = None,
    failing: Mapping[str, float] | None = None,
    cycle_at: float = NOW,
) -> LifeSigns:
    return LifeSigns(
        cycle_at=lambda: cycle_at,
        watches=watches,
        kopf=kopf or FakeKopf(),
        failing=lambda: failing or {},
        monotonic=lambda: NOW,
    )


def late(found: LifeSigns) -> list[str]:
    return [part for part, (age, limit) in found.ages().items() if age > limit]


def test_all_is_well() -> None:
    found = signs(FakeWatch("pods"), kopf=FakeKopf({"gpuqueues": 1.0}))
    assert found.ages() == {
        "cycle": (0.0, CYCLE_AGE_SECONDS_MAX),
        "watch of pods": (0.0, WATCH_AGE_SECONDS_MAX),
        "watch of gpuqueues": (1.0, WATCH_AGE_SECONDS_MAX),
    }
    assert found.unheard() == []


def test_a_loop_that_ends_no_cycle_is_late() -> None:
    assert late(signs(cycle_at=NOW - CYCLE_AGE_SECONDS_MAX - 1)) == ["cycle"]


@pytest.mark.parametrize("of_kopf", [False, True])
def test_a_silent_watch_is_late_whoever_keeps_it(of_kopf: bool) -> None:
    age = WATCH_AGE_SECONDS_MAX + 1
    kept = FakeKopf({"gpuqueues": age}) if of_kopf else FakeKopf()
    own = [] if of_kopf else [FakeWatch("gpuqueues", NOW - age)]
    found = signs(*own, FakeWatch("pods"), kopf=kept)
    assert late(found) == ["watch of gpuqueues"]
    assert found.unheard() == ["a sign of life from gpuqueues"]


@pytest.mark.parametrize("of_kopf", [False, True])
def test_a_kind_that_was_never_listed_is_waited_for(of_kopf: bool) -> None:
    kept = FakeKopf(missing=["gpuqueues"]) if of_kopf else FakeKopf()
    own = [] if of_kopf else [FakeWatch("gpuqueues", listed=False)]
    found = signs(*own, FakeWatch("pods"), kopf=kept)
    assert found.unheard() == ["a list of gpuqueues"]
    assert late(found) == []


def test_a_part_that_fails_again_and_again_is_late() -> None:
    found = signs(failing={"reports": FAILING_SECONDS_MAX + 1, "kopf": 0.0})
    assert late(found) == ["reports failing"]
    assert "kopf failing" not in found.ages()
