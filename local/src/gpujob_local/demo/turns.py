"""Runs a script with and without the injected settings, in turns on one CPU card.

Both are processes that stay there to the end. One is stopped while the other makes its steps, so
each meets the same neighbours, a moment apart, and neither waits for the other. Pairs of such turns
are compared, never two runs at different times.
"""

import contextlib
import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpujob_api.report import Report
from gpujob_api.settings import ENV_SETTINGS, ENV_TERMINATION_FILE, Settings, TunedSettings
from gpujob_local.processes.processes import Child

# The scripts of the examples print every tenth step, so that is the shortest turn.
STEPS_IN_TURN = 10
# Imports, the worker's first inspection of the model and the first steps belong to no turn.
WARM_UP_STEPS = 30
PAIRS = 20
# Of 20 pairs the sixth lowest and the sixth highest ratio enclose the median with 95.9 %, however
# the times of a busy machine are distributed (sign test).
LEFT_OUT = 5
STEPS_MIN = WARM_UP_STEPS + PAIRS * STEPS_IN_TURN
LIMIT_SECONDS = 180.0
_POLL_SECONDS = 0.001
_STEP = re.compile(r"^step (\d+) ", re.MULTILINE)

# Starts a command on the card, with a name and its own variables.
Start = Callable[[str, Sequence[str], Mapping[str, str]], Child]


class TurnsError(Exception):
    """A program ended early or took too long. The message has its last output."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds per step by pair of turns, and the final losses of both programs."""

    plain_seconds: tuple[float, ...]
    tuned_seconds: tuple[float, ...]
    plain_loss: float
    tuned_loss: float
    # The settings that the worker itself reports as applied, or None if it reports nothing.
    in_force: TunedSettings | None

    @property
    def speedup(self) -> "Interval":
        pairs = zip(self.plain_seconds, self.tuned_seconds, strict=True)
        return Interval.of([plain / tuned for plain, tuned in pairs])


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of ratios, and the interval that encloses it with 95 %."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Interval":
        """Raises `ValueError` for any other number of ratios than `PAIRS`."""
        if len(ratios) != PAIRS:
            raise ValueError(f"{len(ratios)} pairs; the interval is that of {PAIRS}")
        ordered = sorted(ratios)
        return cls(statistics.median(ordered), ordered[LEFT_OUT], ordered[-1 - LEFT_OUT])


def compare(start: Start, script: Sequence[str], tuned: TunedSettings, folder: Path) -> Comparison:
    """Runs `script` (its path and arguments except --result) both ways, for at least `STEPS_MIN`
    steps.

    Raises `TurnsError`. Neither process outlives the call.
    """
    results = {name: folder / f"turns-{name}.json" for name in ("plain", "tuned")}
    report = folder / "turns-report.json"
    ways: dict[str, tuple[list[str], dict[str, str]]] = {
        "plain": ([], {}),
        "tuned": (
            ["-m", "gpujob_worker", "--", "python"],
            {ENV_SETTINGS: Settings(tuned=tuned).to_text(), ENV_TERMINATION_FILE: str(report)},
        ),
    }
    programs: list[_Program] = []
    try:
        for name, (launcher, variables) in ways.items():
            command = [sys.executable, *launcher, *script, "--result", str(results[name])]
            programs.append(_Program(start(f"turns-{name}", command, variables)))
        plain, tuned_program = programs
        seconds = _take_turns(plain, tuned_program)
        for program in programs:
            program.finish()
    finally:
        for program in programs:
            program.kill()
    return Comparison(
        *seconds,
        plain_loss=read_result(results["plain"])["loss"],
        tuned_loss=read_result(results["tuned"])["loss"],
        in_force=Report.from_text(report.read_text()).tuned if report.exists() else None,
    )


def _take_turns(
    plain: "_Program", tuned: "_Program"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    for program in (plain, tuned):
        program.run_to(WARM_UP_STEPS)
    for pair in range(PAIRS):
        # The second program finds the processor's cache as the other left it, so the order
        # alternates.
        order = (plain, tuned) if pair % 2 == 0 else (tuned, plain)
        for program in order:
            program.turn(WARM_UP_STEPS + (pair + 1) * STEPS_IN_TURN)
    return tuple(plain.step_seconds), tuple(tuned.step_seconds)


class _Program:
    """A process group that is stopped except in its turns. It runs freely until its first turn."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._end = time.monotonic() + LIMIT_SECONDS
        self.step_seconds: list[float] = []

    def run_to(self, step: int) -> None:
        """Lets it run until it has printed this step, then stops it."""
        self._signal(signal.SIGCONT)
        while self._step() < step:
            self._check(step)
            time.sleep(_POLL_SECONDS)
        self._signal(signal.SIGSTOP)
        # The kernel stops it the next time that it would run. The other's turn begins only then.
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def turn(self, step: int) -> None:
        """Runs one turn up to this step, and records its seconds per step."""
        started = time.monotonic()
        self.run_to(step)
        self.step_seconds.append((time.monotonic() - started) / STEPS_IN_TURN)

    def finish(self) -> None:
        self._signal(signal.SIGCONT)
        while self._child.alive():
            if time.monotonic() > self._end:
                raise TurnsError(f"{self._child.name} did not end: {self._child.log_tail()}")
            time.sleep(_POLL_SECONDS)
        if self._child.process.returncode != 0:
            raise TurnsError(
                f"{self._child.name} ended with {self._child.process.returncode}: "
                f"{self._child.log_tail()}"
            )

    def kill(self) -> None:
        if self._child.alive():
            self._signal(signal.SIGKILL)
            self._child.process.wait()

    def _step(self) -> int:
        steps = _STEP.findall(self._child.log_tail())
        return int(steps[-1]) if steps else 0

    def _check(self, step: int) -> None:
        alive = self._child.alive()
        if not alive or time.monotonic() > self._end:
            how = "did not come to" if alive else "ended before"
            raise TurnsError(f"{self._child.name} {how} step {step}: {self._child.log_tail()}")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)


def read_result(path: Path) -> dict[str, Any]:
    """Returns the result that a training script wrote with --result."""
    return json.loads(path.read_text())
