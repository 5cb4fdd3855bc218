"""One workload on a GPU that is too small for its batch: who finds out, how, and at what price."""

import re
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from bench.speed.receiver import Receiver
from bench.speed.results import common_steps, speed_row
from bench.speed.ways import (
    ACCELERATE,
    AUTO,
    LIGHTNING,
    PLAIN,
    Scale,
    batch_size,
    finder,
    injected,
    plain,
)
from bench.turns.conductor import ENDED, Conductor, Program
from gpujob_api.report import Report

COMPARED = {ACCELERATE: "accelerate", LIGHTNING: "pytorch_lightning"}
# Of what the script as written takes above what every process has after importing torch.
LIMIT_FRACTION = 0.6
ROUNDS = 6
_PREDICTED = re.compile(r"(?P<amount>\S+) (?P<unit>[KMGT]iB) predicted for \d+ samples")
_UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


def race_tight(workload: str, scale: Scale, receiver: Receiver) -> list[dict[str, Any]]:
    """Rows for the script without a limit, ours, Accelerate's and Lightning's finder."""
    if scale.size == "tiny":
        scale = replace(scale, size="small")  # a tiny batch takes less than any noise of the heap
    batch = batch_size(workload, scale) * scale.batch_factor_when_tight
    with Conductor(block_steps=2) as conductor:
        conductor.start([plain(PLAIN, workload, scale, batch, beside_trials=False)])
        for _ in range(2):
            conductor.round()
        whole = conductor.programs[PLAIN]
        if not whole.blocks:
            return [{"workload": workload, "way": PLAIN, "note": whole.failure}]
        limit = _limit(whole, scale)
        name = f"{workload}/tight"
        ours = injected(
            AUTO,
            workload,
            scale,
            url=receiver.url(name),
            # Nothing but the split is on trial: that of a loader would last longer than the blocks.
            settings={"compile": "Off", "precision": "float32", "dataLoading": "Off"},
            batch=batch,
            limit_bytes=limit,
        )
        installed = [name for name, module in COMPARED.items() if find_spec(module) is not None]
        finders = [finder(name, workload, scale, batch, limit) for name in installed]
        whole.blocks.clear()
        conductor.start([ours, *finders])
        for _ in range(ROUNDS):
            conductor.round()
        conductor.end()
        report = receiver.reports.get(name)
        return _rows(workload, scale, conductor, batch, limit, report)


def _limit(whole: Program, scale: Scale) -> int:
    base = 0 if scale.device == "cuda" else int(whole.ready["memory_bytes"])
    return base + int(LIMIT_FRACTION * (whole.blocks[-1].peak_bytes - base))


def _rows(
    workload: str,
    scale: Scale,
    conductor: Conductor,
    batch: int,
    limit: int,
    report: Report | None,
) -> list[dict[str, Any]]:
    programs = conductor.programs
    rows: list[dict[str, Any]] = []
    for name, program in programs.items():
        steps = common_steps([programs[PLAIN], program])
        row = speed_row(
            program,
            programs[PLAIN],
            batch,
            conductor.block_steps,
            steps,
            processor=scale.device == "cpu",
        )
        row |= {
            "workload": workload,
            "way": name,
            "limit_mib": None if name == PLAIN else limit / 2**20,
            "total_batch": row.get("batch"),
            "rows_per_step": row.get("batch"),
            "tried": program.ready.get("tried"),
            "found_seconds": program.ready.get("found_seconds"),
            "out_of_memory": program.ready.get("out_of_memory"),
        }
        if name == AUTO and report is not None:
            row |= _ours(program, programs[PLAIN], report, batch)
        if program.failure not in (None, ENDED):
            row["note"] = program.failure
        rows.append(row)
    return rows


def _ours(program: Program, whole: Program, report: Report, batch: int) -> dict[str, Any]:
    tuned = report.tuned
    found: dict[str, Any] = {
        "rows_per_step": (tuned.batch_per_step if tuned else None) or batch,
        "tried": program.ready.get("probes"),
        "found_seconds": _more_seconds(program, whole),
        "explain": list(report.explain),
    }
    if program.ready.get("out_of_memory") is None:
        found["out_of_memory"] = sum("allocate memory" in line for line in report.explain)
    predicted = predicted_bytes(report)
    if predicted is not None and program.blocks:
        peak = program.blocks[-1].peak_bytes
        found["predicted_mib"] = predicted / 2**20
        found["prediction_error_percent"] = 100 * (predicted - peak) / peak
    return found


def _more_seconds(program: Program, whole: Program) -> float | None:
    """The free steps against the plain script's: what finding out cost."""
    if "seconds" not in program.ready or "seconds" not in whole.ready:
        return None
    return max(0.0, program.ready["seconds"] - whole.ready["seconds"])


def predicted_bytes(report: Report) -> int | None:
    """What the worker said its way of making the step would take; None when it said nothing."""
    for line in report.explain:
        match = _PREDICTED.search(line)
        if match:
            return int(float(match["amount"]) * _UNITS[match["unit"]])
    return None
