"""The report of a run as Markdown and JSON: the measurements and their reasons.

The first and the latest steps ran at different times, next to different co-tenants. Both are shown,
but only alternating measurements are reported as a speed-up.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpujob_api.codec import encode
from gpujob_api.quantities import format_count, format_memory, format_ratio
from gpujob_api.report import Efficiency, Report, Timing
from gpujob_api.settings import Precision, Task
from gpujob_worker.device.gpu import peak_flop_per_second
from gpujob_worker.run.standard_error import say

WAIT_PERCENT_WORTH_SAYING = 5.0
IDLE_PERCENT = 50.0
# Peaks closer together than this count as equal.
PEAKS_APART = 1.05
_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6))


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts for this report that the worker's report does not have."""

    baseline_wait_percent: float | None = None
    plain_float32: bool = False


def findings(report: Report, facts: Facts) -> list[str]:
    """Returns reasons with numbers, the largest loss first."""
    found: list[str] = []
    wait = facts.baseline_wait_percent
    if wait is not None and wait >= WAIT_PERCENT_WORTH_SAYING:
        found.append(f"{wait:.0f} % of a step as written was waiting for data")
    efficiency = report.efficiency or Efficiency()
    busy = efficiency.gpu_utilization_percent
    if busy is not None and busy < IDLE_PERCENT:
        found.append(f"the GPU is busy {busy:.0f} % of the time: too little work at once")
    if facts.plain_float32:
        found.append(_float32(report))
    found += _memory(report)
    if report.skipped_steps:
        found.append(f"{report.skipped_steps} steps were skipped: float16 gradients overflowed")
    return found


def _float32(report: Report) -> str:
    text = "fp32 matmuls: the script's matrix products run in float32"
    plain = peak_flop_per_second(report.device, Precision.FLOAT32)
    mixed = peak_flop_per_second(report.device, Precision.BFLOAT16)
    if plain is None or mixed is None:
        return text
    tera = f"{plain / 1e12:.4g} TFLOP/s, of bfloat16 {mixed / 1e12:.4g}"
    return f"{text}, of which this GPU's peak is {tera}"


def _memory(report: Report) -> list[str]:
    peaks = report.peaks
    if peaks is None or peaks.optimizer_bytes <= PEAKS_APART * peaks.forward_backward_bytes:
        return []
    return [
        f"the optimizer's step holds the memory peak ({format_memory(peaks.optimizer_bytes)}; "
        f"forward and backward {format_memory(peaks.forward_backward_bytes)})"
    ]


def markdown(report: Report, facts: Facts) -> str:
    """Returns the report as one page of Markdown."""
    answers = report.task is Task.INFERENCE
    progress = format_count(report.step, "call") if answers else f"Step {report.step}"
    lines = [f"# {progress}, attempt {report.attempt}", "", _headline(report), ""]
    lines += ["| | first steps | latest steps |", "|---|---|---|", *_rows(report, facts), ""]
    reasons = findings(report, facts)
    if reasons:
        lines += ["## Why", "", *(f"- {reason}" for reason in reasons), ""]
    lines += ["## What was done", "", *(f"- {line}" for line in report.explain), ""]
    if report.failure is not None:
        failure = report.failure
        lines += ["## How it ended", "", f"{failure.failure_class.value}: {failure.message}", ""]
    return "\n".join(lines)


def _headline(report: Report) -> str:
    where = f"{report.device or 'unknown device'}, torch {report.torch_version or 'not imported'}"
    gain = report.speedup
    if gain is None:
        return f"{where}: no speed-up was measured."
    ratio, low, high = map(format_ratio, (gain.ratio, gain.low, gain.high))
    interval = f"(95 % {low} to {high}, {gain.pairs} pairs in turns)"
    what = "calls are" if report.task is Task.INFERENCE else "forward and backward are"
    return f"{where}: {what} {ratio} times as fast {interval}."


def _rows(report: Report, facts: Facts) -> list[str]:
    before, after = report.baseline, report.current
    efficiency = report.efficiency or Efficiency()
    values = [
        ("step", _seconds(before), _seconds(after)),
        ("samples per second", _rate(before), _rate(after)),
        *((f"latency p{n}", _latency(before, n), _latency(after, n)) for n in (50, 95, 99)),
        ("peak memory", _bytes(before), _bytes(after)),
        (
            "waiting for data",
            _percent(facts.baseline_wait_percent),
            _percent(report.data_wait_percent),
        ),
        ("FLOP/s", _flop(efficiency, before), _flop(efficiency, after)),
        ("of the GPU's peak", "", _percent(_of_peak(efficiency))),
        ("GPU busy", "", _percent(efficiency.gpu_utilization_percent)),
        ("energy of a step", "", _joules(efficiency.joules_per_step)),
    ]
    return [f"| {name} | {left} | {right} |" for name, left, right in values if left or right]


def _of_peak(efficiency: Efficiency) -> float | None:
    if not efficiency.flop_per_second or not efficiency.gpu_flop_per_second:
        return None
    return 100 * efficiency.flop_per_second / efficiency.gpu_flop_per_second


def _seconds(timing: Timing | None) -> str:
    return f"{1000 * timing.step_seconds:.1f} ms" if timing is not None else ""


def _rate(timing: Timing | None) -> str:
    rate = timing.samples_per_second if timing is not None else None
    return f"{rate:.1f}" if rate is not None else ""


def _latency(timing: Timing | None, percent: int) -> str:
    latency = timing.latency if timing is not None else None
    if latency is None:
        return ""
    milliseconds: float = getattr(latency, f"p{percent}_milliseconds")
    return f"{milliseconds:.1f} ms"


def _bytes(timing: Timing | None) -> str:
    return format_memory(timing.peak_memory_bytes) if timing is not None else ""


def _percent(value: float | None) -> str:
    return f"{value:.0f} %" if value is not None else ""


def _flop(efficiency: Efficiency, timing: Timing | None) -> str:
    if efficiency.step_flop is None or timing is None or timing.step_seconds <= 0:
        return ""
    rate = efficiency.step_flop / timing.step_seconds
    unit, size = next((unit for unit in _UNITS if rate >= unit[1]), _UNITS[-1])
    return f"{rate / size:.3g} {unit}FLOP/s"


def _joules(value: float | None) -> str:
    return f"{value:.1f} J" if value is not None else ""


def leave(folder: Path | None, report: Report, facts: Facts) -> None:
    """Writes both files if they were requested. An error does not affect the script's end."""
    try:
        if folder is not None:
            write(folder, report, facts)
    except OSError as error:
        say(f"gpujob-run: --report-directory: {error}")


def write(folder: Path, report: Report, facts: Facts) -> Sequence[Path]:
    """Writes report.md and report.json. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / "report.md", folder / "report.json"
    page.write_text(markdown(report, facts))
    known = {"report": encode(report), "facts": encode(facts), "findings": findings(report, facts)}
    data.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    return page, data
