"""kubectl gpujob report: one page of what was measured and gained, before and after."""

from datetime import datetime
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import Counters, GPUJob, Measurement
from gpujob_api.quantities import format_memory
from gpujob_api.report import Timing
from kubectl_gpujob import text

Row = tuple[str, str]
Comparison = tuple[str, str, str, str]

_COUNTERS = {
    "interruptions": "interrupted",
    "out_of_memory": "out of memory",
    "errors": "failed",
    "hung": "hung",
    "node_lost": "node lost",
}


def speedup(before: Timing, after: Timing) -> float:
    """How many times faster: by samples where both know them, else by step time."""
    if before.samples_per_second and after.samples_per_second:
        return after.samples_per_second / before.samples_per_second
    return before.step_seconds / after.step_seconds


def comparison(job: GPUJob) -> list[Comparison]:
    """Rows of (what, before, after, change). Empty until both are measured."""
    measured = job.status.measurement
    if measured is None or measured.baseline is None or measured.current is None:
        return []
    before, after = measured.baseline, measured.current
    found = [
        (
            "step time",
            text.duration(before.step_seconds),
            text.duration(after.step_seconds),
            f"{speedup(before, after):.2f}x as fast",
        ),
        (
            "peak memory",
            format_memory(before.peak_memory_bytes),
            format_memory(after.peak_memory_bytes),
            text.change_percent(before.peak_memory_bytes, after.peak_memory_bytes),
        ),
    ]
    if before.samples_per_second and after.samples_per_second:
        rates = (before.samples_per_second, after.samples_per_second)
        found.append(
            ("samples/s", f"{rates[0]:.4g}", f"{rates[1]:.4g}", text.change_percent(*rates))
        )
    return found


def rows(job: GPUJob, now: datetime) -> list[Row]:
    """What is known besides the comparison."""
    status = job.status
    found: list[Row] = [("Phase", _phase(job, now))]
    if status.tuned is not None:
        probing = status.tuning_seconds
        took = f" (found in {text.duration(probing)})" if probing else ""
        found.append(("Settings", text.settings(status.tuned, job) + took))
    if status.measurement is not None:
        found += _measurement(status.measurement)
    if status.reservation is not None:
        held = status.reservation
        share = "a whole card" if held.exclusive else format_memory(held.memory_bytes)
        found.append(("Reserved", f"{share}, from {held.source.value}"))
    if status.checkpoint is not None:
        saved = status.checkpoint
        cost = f", {format_memory(saved.bytes)} in {text.duration(saved.write_seconds)}"
        found.append(("Checkpoint", f"step {saved.step}{cost if saved.bytes else ''}"))
    found.append(("Attempts", _attempts(job)))
    if status.placement is not None:
        found += [("Placement", line) for line in text.placement(status.placement)]
    if status.summary.cost:
        found.append(("Cost", status.summary.cost))
    return [*found, *(("Why", line) for line in status.explain)]


def as_json(job: GPUJob) -> dict[str, Any]:
    """The same for programs; what is not measured is left out."""
    status = job.status
    result: dict[str, Any] = {
        "namespace": job.metadata.namespace,
        "name": job.metadata.name,
        "phase": status.phase.value,
        "attempts": {"count": status.attempt, **encode(status.counters)},
    }
    if status.resumed_from_step is not None:
        result["attempts"]["resumedFromStep"] = status.resumed_from_step
    measured = status.measurement
    if measured is not None:
        result["measurement"] = encode(measured)
        if measured.baseline is not None and measured.current is not None:
            result["speedup"] = round(speedup(measured.baseline, measured.current), 4)
    for name in ("tuned", "checkpoint", "reservation", "placement"):
        value = getattr(status, name)
        if value is not None:
            result[name] = encode(value)
    if status.tuning_seconds is not None:
        result["tuningSeconds"] = status.tuning_seconds
    return result


def _phase(job: GPUJob, now: datetime) -> str:
    started, finished = job.status.started_at, job.status.finished_at
    if started is None:
        return f"{job.status.phase.value}, not started yet"
    seconds = ((finished or now) - started).total_seconds()
    return f"{job.status.phase.value}, {text.duration(seconds)} since the first start"


def _measurement(measured: Measurement) -> list[Row]:
    of = f" of {measured.steps_total}" if measured.steps_total is not None else ""
    loss = f", loss {measured.loss:.6g}" if measured.loss is not None else ""
    progress = f"step {measured.step}{of}{loss}"
    card = (
        f"{format_memory(measured.memory_bytes)} of card memory, "
        f"utilization {measured.utilization_percent:.0f} %, {measured.samples} samples"
    )
    if measured.data_wait_percent is not None:
        card += f"; waits {measured.data_wait_percent:.0f} % of the time for data"
    device = " ".join(part for part in (measured.device, measured.torch_version) if part)
    found = [("Progress", progress), ("Measured", card)]
    return [*found, ("Device", device)] if device else found


def _attempts(job: GPUJob) -> str:
    counters: Counters = job.status.counters
    told = [
        f"{getattr(counters, name)} {word}"
        for name, word in _COUNTERS.items()
        if getattr(counters, name)
    ]
    if job.status.resumed_from_step is not None:
        told.append(f"continued after step {job.status.resumed_from_step}")
    return ", ".join([str(job.status.attempt), *told])
