"""What a checkpoint costs a plain script, beside the same script under another version of ours."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.speed.ways import Scale, injected, resumable, scale_of
from bench.turns.conductor import ENDED, Block, Conductor, Entry, Program, pairs
from bench.turns.ratios import Ratio, ratio_of_medians
from gpujob_worker.tune.settings import FEATURES

NOW, BEFORE = "now", "before"
WORKLOAD = "gpt2"
TIMES = ("blocked", "blocked_processor", "written", "written_processor")
RATIOS = ("blocked_processor", "written_processor")
COLUMNS = ("way", *TIMES, "rounds", *(f"{name}_ratio" for name in RATIOS), "note")
# Half of them with a checkpoint; a checkpoint makes the two steps after it longer.
BLOCK_STEPS = 8
# The first one takes the memory for the copy.
ROUNDS_UNCOUNTED = 2
ROUNDS, ROUNDS_QUICK = 60, 6


def measure_script(
    folder: Path, device: str, *, quick: bool, before: Path | None = None
) -> list[dict[str, Any]]:
    """A row of the present product, and one of the checkout `before`."""
    scale = scale_of(device, quick=quick)
    with Conductor(BLOCK_STEPS) as conductor:
        entries = [_entry(NOW, scale, folder)]
        if before is not None:
            entries.append(_entry(BEFORE, scale, folder, before))
        conductor.start(entries)
        for _ in range(ROUNDS_UNCOUNTED + (ROUNDS_QUICK if quick else ROUNDS)):
            conductor.round()
        conductor.end()
        programs = list(conductor.programs.values())
    return [_row(program, programs) for program in programs]


def _entry(way: str, scale: Scale, folder: Path, checkout: Path | None = None) -> Entry:
    without = [feature for feature in FEATURES if feature != "resume"]
    directory = folder / f"script-{way}"
    entry = injected(way, WORKLOAD, scale, url=None, without=without)
    return resumable(entry, directory, checkout, saves=True)


def _row(program: Program, programs: Sequence[Program]) -> dict[str, Any]:
    blocks = program.blocks[ROUNDS_UNCOUNTED:]
    failure = None if program.failure == ENDED else program.failure
    row: dict[str, Any] = {"way": program.entry.name, "rounds": len(blocks), "note": failure}
    for name in TIMES if blocks else ():
        row[name] = 1e3 * statistics.median(block.saved[name] for block in blocks)
    other = programs[-1]
    together = pairs(program, other)[ROUNDS_UNCOUNTED:]
    if other is not program and together:
        row |= {f"{name}_ratio": str(_ratio(together, name)) for name in RATIOS}
    return row


def _ratio(together: Sequence[tuple[Block, Block]], name: str) -> Ratio:
    times = [(one.saved[name], other.saved[name]) for one, other in together]
    return ratio_of_medians(*zip(*times, strict=True))
