"""kubectl gpujob report: one page of measurements and gains.

The first and the latest steps ran at different times, next to different co-tenants, so their times
are shown without a factor. A speed-up is the worker's alternating measurement.
"""

import argparse
from datetime import datetime
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import Counters, GPUJob, Measurement
from gpujob_api.gpuservice import GPUService
from gpujob_api.meta import ConditionStatus
from gpujob_api.quantities import format_count, format_memory
from gpujob_api.report import Latency, Speedup
from gpujob_api.settings import OptimizeMode
from gpujob_operator.decide.measurement.profile import attempt_mode
from gpujob_operator.decide.model.conditions import UNPROTECTED, UNTUNED, YIELDING, find
from gpujob_operator.decide.model.placement_record import ignored_hint
from kubectl_gpujob import html, services, text
from kubectl_gpujob.errors import EXIT_DONE, NotFoundError
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.screen import Screen

Row = tuple[str, str]
Comparison = tuple[str, str, str, str]

_COUNTERS = {
    "interruptions": "interrupted",
    "out_of_memory": "out of memory",
    "errors": "failed",
    "hung": "hung",
    "node_lost": "node lost",
}

_COMPARISON = ("", "FIRST STEPS", "LATEST STEPS", "CHANGE")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job or of the GPUService")
    parser.add_argument(
        "--html", action="store_true", help="print one page of HTML, such as for a colleague"
    )
    add_target(parser)
    add_output(parser, "table", "json")


def run(options: argparse.Namespace, world: World) -> int:
    cluster, screen = world.cluster(options), world.screen
    try:
        job = cluster.job(options.name)
    except NotFoundError:
        service = cluster.service(options.name)
        if service is None:
            raise
        return _show_service(service, options, screen)
    if options.output == "json":
        screen.json(as_json(job))
        return EXIT_DONE
    if options.html:
        parts = [html.rows(rows(job, world.now()))]
        if compared := comparison(job):
            parts.append(html.table(_COMPARISON, compared))
        screen.line(html.page(job.metadata.key, parts))
        return EXIT_DONE
    screen.rows(job.metadata.key, rows(job, world.now()))
    if compared := comparison(job):
        screen.line()
        screen.table([dict(zip(_COMPARISON, row, strict=True)) for row in compared], _COMPARISON)
    return EXIT_DONE


def _show_service(service: GPUService, options: argparse.Namespace, screen: Screen) -> int:
    if options.output == "json":
        screen.json(services.as_json(service))
        return EXIT_DONE
    tables = [
        (services.REPLICA_COLUMNS, services.replicas(service)),
        (services.CANDIDATE_COLUMNS, services.candidates(service)),
    ]
    if options.html:
        parts = [html.rows(services.rows(service))]
        parts += [html.table(columns, found) for columns, found in tables if found]
        screen.line(html.page(service.metadata.key, parts))
        return EXIT_DONE
    screen.rows(service.metadata.key, services.rows(service))
    for columns, found in tables:
        if found:
            screen.line()
            screen.table([dict(zip(columns, row, strict=True)) for row in found], columns)
    return EXIT_DONE


def speedup(job: GPUJob) -> Speedup | None:
    """Returns the speed-up of the alternating measurement, or None in modes that apply nothing."""
    measured = job.status.measurement
    if measured is None or attempt_mode(job) is not OptimizeMode.AUTO:
        return None
    return measured.speedup


def comparison(job: GPUJob) -> list[Comparison]:
    """Returns rows of (what, before, after, change). Empty until both are measured."""
    measured = job.status.measurement
    if measured is None or measured.baseline is None or measured.current is None:
        return []
    before, after = measured.baseline, measured.current
    found = [
        (
            "call time" if measured.counts_calls else "step time",
            text.duration(before.step_seconds),
            text.duration(after.step_seconds),
            "",
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
        found.append(("samples/s", f"{rates[0]:.4g}", f"{rates[1]:.4g}", ""))
    return found + _latencies(before.latency, after.latency)


def _latencies(before: Latency | None, after: Latency | None) -> list[Comparison]:
    if before is None or after is None:
        return []
    pairs = {
        "latency p50": (before.p50_milliseconds, after.p50_milliseconds),
        "latency p95": (before.p95_milliseconds, after.p95_milliseconds),
        "latency p99": (before.p99_milliseconds, after.p99_milliseconds),
    }
    return [(name, f"{old:.3g} ms", f"{new:.3g} ms", "") for name, (old, new) in pairs.items()]


def rows(job: GPUJob, now: datetime) -> list[Row]:
    """Returns all rows except the comparison."""
    status = job.status
    found: list[Row] = [("Phase", _phase(job, now))]
    if status.tuned is not None:
        probing = status.tuning_seconds
        took = f" (found in {text.duration(probing)})" if probing else ""
        recommends = attempt_mode(job) is OptimizeMode.RECOMMEND
        name = "Recommended" if recommends else "Settings"
        found.append((name, text.settings(status.tuned, job) + took))
    gain = speedup(job)
    if gain is not None:
        found.append(("Speed-up", text.speedup(gain)))
    if status.measurement is not None:
        found += _measurement(status.measurement)
    if status.reservation is not None:
        held = status.reservation
        share = "a whole GPU" if held.exclusive else format_memory(held.memory_bytes)
        hint = ignored_hint(job, held, status.profile or "")
        source = f"({held.source.value})" + (f"; {hint}" if hint else "")
        found.append(("Reserved", f"{share} {source}"))
    for kind in (UNTUNED, YIELDING):
        found += _stated(job, kind)
    found += _protection(job)
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
    """Returns the same for programs. Values that are not measured are left out."""
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
        gain = speedup(job)
        if gain is not None:
            result["speedup"] = encode(gain)
        else:
            result["measurement"].pop("speedup", None)
    for name in ("tuned", "checkpoint", "reservation", "placement"):
        value = getattr(status, name)
        if value is not None:
            result[name] = encode(value)
    if status.protection is not None:
        result["protection"] = status.protection.value
    if status.cost is not None:
        result["cost"] = status.cost
    if status.tuning_seconds is not None:
        result["tuningSeconds"] = status.tuning_seconds
    return result


def _phase(job: GPUJob, now: datetime) -> str:
    started, finished = job.status.started_at, job.status.finished_at
    if started is None:
        return f"{job.status.phase.value}, {'not started yet' if finished is None else 'never ran'}"
    seconds = ((finished or now) - started).total_seconds()
    return f"{job.status.phase.value}, {text.duration(seconds)} since the first start"


def _measurement(measured: Measurement) -> list[Row]:
    of = f" of {measured.steps_total}" if measured.steps_total is not None else ""
    loss = f", loss {measured.loss:.6g}" if measured.loss is not None else ""
    progress = f"{measured.progress}{of}{loss}"
    gpu = (
        f"{format_memory(measured.memory_bytes)} of GPU memory, "
        f"utilization {measured.utilization_percent:.0f} %, "
        f"{format_count(measured.samples, 'reading')}"
    )
    if measured.data_wait_percent is not None:
        gpu += f"; waiting for data {measured.data_wait_percent:.0f} % of the time"
    device = " ".join(part for part in (measured.device, measured.torch_version) if part)
    found = [("Progress", progress), ("Measured", gpu)]
    return [*found, ("Device", device)] if device else found


def _stated(job: GPUJob, kind: str) -> list[Row]:
    """Returns the row of a condition that reports a problem, while it is True."""
    found = find(job.status, kind)
    is_so = found is not None and found.status is ConditionStatus.TRUE
    return [(kind, found.message)] if found is not None and is_so else []


def _protection(job: GPUJob) -> list[Row]:
    """Returns what an interruption loses, or nothing while that is not known."""
    if unprotected := _stated(job, UNPROTECTED):
        return unprotected
    known = text.protection(job)
    return [("Protected", known)] if known else []


def _attempts(job: GPUJob) -> str:
    counters: Counters = job.status.counters
    parts = [
        f"{getattr(counters, name)} {word}"
        for name, word in _COUNTERS.items()
        if getattr(counters, name)
    ]
    resumed = job.status.resumed_from_step
    if resumed is not None:
        parts.append(f"resumed after step {resumed}" if resumed else "started from the beginning")
    return ", ".join([str(job.status.attempt), *parts])
