"""Two programs in turns: neither runs in the other's, what ends early is said, nobody stays."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpujob_api.settings import TunedSettings
from gpujob_local.demo import turns
from gpujob_local.demo.turns import (
    Interval,
    TurnsError,
    _Program,  # pyright: ignore[reportPrivateUsage]
)
from gpujob_local.processes.processes import Child, start_child

# Says its steps as the examples do; `pace` seconds of processor time each.
SCRIPT = """
import json, sys, time
pace, last = float(sys.argv[1]), int(sys.argv[2])
for step in range(1, last + 1):
    end = time.process_time() + pace
    while time.process_time() < end:
        pass
    if step % 10 == 0:
        print(f"step {step} loss 0.5", flush=True)
json.dump({"loss": 0.5}, open(sys.argv[sys.argv.index("--result") + 1], "w"))
"""


class Card:
    """Starts processes as a card would; what says `-m gpujob_worker` runs at half the pace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Child] = []
        self.variables: dict[str, Mapping[str, str]] = {}

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> Child:
        self.variables[name] = variables
        python, *rest = command
        if "gpujob_worker" in rest:
            rest = [rest[4], str(float(rest[5]) / 2), *rest[6:]]
        log = self.folder / f"{name}.log"
        self.started.append(start_child(name, [python, *rest], dict(os.environ), log))
        return self.started[-1]


@pytest.fixture
def card(tmp_path: Path) -> Card:
    (tmp_path / "train.py").write_text(SCRIPT)
    return Card(tmp_path)


def compare(card: Card, pace: str = "0.002", last: int = turns.STEPS_MIN) -> turns.Comparison:
    script = [str(card.folder / "train.py"), pace, str(last)]
    return turns.compare(card.start, script, TunedSettings(fused_optimizer=True), card.folder)


def test_both_make_the_same_steps_and_end(card: Card) -> None:
    found = compare(card)
    assert len(found.plain_seconds) == len(found.tuned_seconds) == turns.PAIRS
    assert (found.plain_loss, found.tuned_loss) == (0.5, 0.5)
    assert found.in_force is None, "nobody reported"
    assert found.speedup.low <= found.speedup.median <= found.speedup.high
    assert not [child for child in card.started if child.alive()]
    assert card.variables["turns-plain"] == {}
    assert '"fusedOptimizer":true' in card.variables["turns-tuned"]["GPUJOB_SETTINGS"]


def test_the_program_that_waits_is_stopped(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[str] = []
    plain_turn = _Program.turn

    def turn(program: _Program, step: int) -> None:
        plain_turn(program, step)
        states.extend(state_of(child) for child in card.started)

    monkeypatch.setattr(_Program, "turn", turn)
    compare(card)
    assert len(states) == 2 * 2 * turns.PAIRS
    # Stopped, or at its end where the machine was too busy to stop it in time; never running.
    assert "T" in states
    assert set(states) <= {"T", "Z"}


def state_of(child: Child) -> str:
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_that_ends_early_is_said_and_none_stays(card: Card) -> None:
    with pytest.raises(TurnsError, match="ended before step"):
        compare(card, last=60)
    assert not [child for child in card.started if child.alive()]


def test_the_interval_is_that_of_twenty_pairs() -> None:
    found = Interval.of([float(number) for number in range(turns.PAIRS)])
    assert (found.median, found.low, found.high) == (9.5, 5.0, 14.0)
    with pytest.raises(ValueError, match="3 pairs"):
        Interval.of([1.0, 2.0, 3.0])
