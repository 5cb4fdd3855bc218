"""From what the programs said and printed to rows of figures."""

import re
import statistics
from collections.abc import Sequence
from typing import Any

from bench.turns.conductor import ENDED, Program, pairs
from bench.turns.ratios import paired_ratio
from gpujob_api.report import Report

LOSSES_AVERAGED = 5
_LOSS = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)
_APPLIED = re.compile(r"^(?P<item>.+?) applied: (?P<what>.*)$")
# The worker's item names where they differ from its switches.
_SWITCHES = {
    "fused optimizer": "optimizer",
    "data loading": "data_loader",
    "precision tf32": "precision",
    "attention kernel": "attention",
}


def losses(output: str) -> list[float]:
    """What a script printed, step by step."""
    return [float(loss) for _, loss in _LOSS.findall(output)]


def loss_at(output: str, steps: int) -> float | None:
    """Mean of the last losses up to `steps`; None when the script did not get there."""
    found = losses(output)
    if len(found) < steps or steps < LOSSES_AVERAGED:
        return None
    return statistics.fmean(found[steps - LOSSES_AVERAGED : steps])


def common_steps(programs: Sequence[Program]) -> int:
    """Steps that all of them did, of those that did any block."""
    counts = [len(losses(program.output)) for program in programs if program.blocks]
    return min(counts, default=0)


def applied_items(report: Report | None) -> dict[str, str]:
    """What the worker says it applied, by item."""
    lines = report.explain if report is not None else ()
    found = [match for line in lines if (match := _APPLIED.match(line))]
    return {match["item"]: match["what"] for match in found}


def switch_of(item: str) -> str:
    """Of what is said of another module or optimizer too (`fused optimizer of Adam 2`)."""
    item, _, _ = item.partition(" of ")
    return _SWITCHES.get(item, item.replace(" ", "_"))


def speed_row(
    program: Program, plain: Program, batch: int, block_steps: int, steps: int, *, processor: bool
) -> dict[str, Any]:
    """Samples a second against the plain script, in pairs of blocks of one round.

    With `processor`, by processor seconds in place of the clock's: the measure on the CPU, where
    others use the cores as well. Loader workers are processes of their own and not in it.
    """
    paired = pairs(plain, program)
    if not paired:
        return {"note": program.failure or "no block was run"}
    size = int(program.ready.get("batch", batch))
    clock = paired_ratio([b.seconds for b, _ in paired], [b.seconds for _, b in paired])
    ratio = clock
    if processor:
        ratio = paired_ratio(
            [b.processor_seconds for b, _ in paired], [b.processor_seconds for _, b in paired]
        )
    step_seconds = statistics.median(b.seconds for _, b in paired) / block_steps
    factor = size / batch
    row: dict[str, Any] = {
        "speedup": ratio.median * factor,
        "low": ratio.low * factor,
        "high": ratio.high * factor,
        "by_clock": clock.median * factor,
        "rounds": ratio.pairs,
        "samples_per_second": size / step_seconds,
        "peak_mib": program.blocks[-1].peak_bytes / 2**20,
        "batch": size,
        "loss": loss_at(program.output, steps),
    }
    if program.failure not in (None, ENDED):
        row["note"] = program.failure
    return row
