"""One workload, trained in all ways at once on one machine, and what is said about each."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.speed.receiver import Receiver
from bench.speed.results import applied_items, common_steps, speed_row, switch_of
from bench.speed.ways import (
    AGAIN,
    ALONE,
    AUTO,
    BY_HAND,
    COMPILED,
    PLAIN,
    Scale,
    batch_size,
    by_hand,
    injected,
    plain,
)
from bench.turns.conductor import Conductor, Entry, Program

# What a way needs from its turn to be ready, at most as a rule; on a GPU, where time is lent.
_NEEDED_SECONDS = {AUTO: 22.0, COMPILED: 45.0, BY_HAND: 35.0}
_NEEDED_SECONDS_OTHERS = 12.0
READY_SECONDS_MAX = 600.0
ROUNDS_MIN = 5


@dataclass(slots=True)
class Deadline:
    """When a part of a benchmark must be done; None is never."""

    at: float | None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        return cls(None if seconds is None else time.monotonic() + seconds)

    def left(self) -> float:
        return float("inf") if self.at is None else max(0.0, self.at - time.monotonic())

    def has(self, seconds: float) -> bool:
        return seconds < self.left()


def race(
    workload: str, scale: Scale, receiver: Receiver, deadline: Deadline
) -> list[dict[str, Any]]:
    """Rows for the script as written, injected, compiled, by hand, and with single items."""

    def url(way: str) -> str:
        return receiver.url(f"{workload}/{way}")

    def has_time(entry: Entry) -> bool:
        return deadline.has(_NEEDED_SECONDS.get(entry.name, _NEEDED_SECONDS_OTHERS))

    ready_seconds = min(READY_SECONDS_MAX, deadline.left() + _NEEDED_SECONDS[BY_HAND])
    with Conductor(scale.block_steps, ready_seconds) as conductor:
        auto = injected(AUTO, workload, scale, url=url(AUTO), settings={"compile": "Off"})
        entries = [plain(PLAIN, workload, scale), auto]
        if scale.compile:
            asked = {"compile": "On"}
            entries.append(injected(COMPILED, workload, scale, url=url(COMPILED), settings=asked))
        if "hand" in scale.ways:
            # Alone: what runs beside it would decide which point is the fastest.
            entries.append(by_hand(workload, scale))
        if scale.device == "cpu":
            entries.append(plain(AGAIN, workload, scale))
        conductor.start(entries, has_time)
        _run_rounds(conductor, scale, deadline)
        conductor.end_all_but(PLAIN)  # a second heat, so that all fit into the GPU's memory
        applied = applied_items(receiver.reports.get(f"{workload}/{AUTO}"))
        singles = _singles(workload, scale, receiver, list(applied))
        if singles and has_time(singles[0]):
            conductor.start(singles, has_time)
            _run_rounds(conductor, scale, deadline)
        conductor.end()
        return _rows(workload, scale, conductor, receiver) + _not_compiled(workload, scale)


def _not_compiled(workload: str, scale: Scale) -> list[dict[str, Any]]:
    """In place of the row that cannot be measured here: it must not read as a slow one."""
    if scale.compile_refusal is None:
        return []
    note = f"not run, nor compiled by hand: {scale.compile_refusal}"
    return [{"workload": workload, "way": COMPILED, "note": note}]


def _singles(workload: str, scale: Scale, receiver: Receiver, items: Sequence[str]) -> list[Entry]:
    """Each applied item alone, where there is more than one: the gain stated apart."""
    switches = sorted({switch_of(item) for item in items})
    if len(switches) < 2 or "alone" not in scale.ways:
        return []
    names = {switch: f"{ALONE}{switch}" for switch in switches}
    return [
        injected(
            name,
            workload,
            scale,
            url=receiver.url(f"{workload}/{name}"),
            settings={"compile": "Off"},
            only=switch,
        )
        for switch, name in names.items()
    ]


def _run_rounds(conductor: Conductor, scale: Scale, deadline: Deadline) -> None:
    took = 0.0
    for index in range(scale.rounds):
        if index >= ROUNDS_MIN and not deadline.has(took):
            return
        start = time.monotonic()
        conductor.round()
        took = time.monotonic() - start


def _rows(
    workload: str, scale: Scale, conductor: Conductor, receiver: Receiver
) -> list[dict[str, Any]]:
    programs = conductor.programs
    steps = common_steps(list(programs.values()))
    batch = batch_size(workload, scale)
    rows: list[dict[str, Any]] = []
    for name, program in programs.items():
        row = speed_row(
            program,
            programs[PLAIN],
            batch,
            scale.block_steps,
            steps,
            processor=scale.device == "cpu",
        )
        report = receiver.reports.get(f"{workload}/{name}")
        chosen = ", ".join(applied_items(report)) or "nothing"
        if report is None:
            chosen = str(program.ready.get("best", ""))
        found = {"chosen": chosen, "probes": _tried(program), "steps": steps}
        if "compiles" in program.ready:
            found["compiles"] = program.ready["compiles"]
        if report is not None:
            found |= {"tuning_seconds": report.tuning_seconds, "explain": list(report.explain)}
        else:
            found["tuning_seconds"] = program.ready.get("found_seconds")
        rows.append({"workload": workload, "way": name, **row, **found})
    return rows


def _tried(program: Program) -> int | None:
    """Runs of ours that were no step of the training, or points of the grid."""
    return program.ready.get("tried") or program.ready.get("probes") or None
