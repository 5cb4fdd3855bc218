"""The claims of the demo as pure checks of what was seen."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpujob_api.gpujob import GPUJob, ReservationSource
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.quantities import format_memory
from gpujob_local.demo.telling import Claim

# Relative, for the loss of a tuned run against the plain one: bfloat16 keeps 8 bits of mantissa.
LOSS_TOLERANCE = 0.05


def packed(first: Sequence[GPUJob], second: Sequence[GPUJob], card_bytes: int) -> Claim:
    """A job ran alone, was measured, made room, and another joined it on its card."""
    alone = _with_source(first, ReservationSource.WHOLE_CARD)
    measured = _with_source(first, ReservationSource.MEASURED)
    joined = _with_source(second, ReservationSource.PROFILE)
    title = "Packed by measurement: declared figures alone would have needed a second card"
    if alone is None or measured is None or joined is None:
        return Claim(title, False, ("the reservations were not seen to shrink and to be joined",))
    hints = sum(_hint(jobs[0]) for jobs in (first, second))
    held = sum(_held(job) for job in (measured, joined))
    one_card = _cards(measured) == _cards(joined)
    figures = (
        f"{_name(first)} held {format_memory(_held(alone))}, was measured at "
        f"{format_memory(_used(measured))} and then held {format_memory(_held(measured))}",
        f"{_name(second)} joined it on {', '.join(sorted(_cards(joined)))} "
        f"with {format_memory(_held(joined))} from the profile",
        f"declared together {format_memory(hints)}, held together {format_memory(held)}, "
        f"the card has {format_memory(card_bytes)}",
    )
    return Claim(title, one_card and hints > card_bytes >= held, figures)


def stranger_respected(
    waiting: GPUJob, final: GPUJob, stranger_bytes: int, card_bytes: int
) -> Claim:
    condition = next(c for c in waiting.status.conditions if c.type == "Scheduled")
    numbers = "missing" in condition.message and "strangers" in condition.message
    holds = waiting.status.placement is None and numbers and final.status.attempt == 1
    return Claim(
        "Strangers respected: nothing is placed where it no longer fits, and the numbers are said",
        holds,
        (
            f"a stranger took {format_memory(stranger_bytes)} of {format_memory(card_bytes)}",
            f"{waiting.metadata.name} waited: {condition.message}",
            f"it was placed when the stranger was gone: {final.status.summary.where}",
        ),
    )


def optimized(
    final: GPUJob, injected: dict[str, Any], plain: dict[str, Any], others: Iterable[GPUJob] = ()
) -> Claim:
    """The worker's own before and after, and the loss against a run without GPUJob.

    `others` chose for speed alone; this one's owner asked for less memory.
    """
    title = "Optimized settings, injected into an unmodified script; what is learned stays"
    measured, tuned = final.status.measurement, final.status.tuned
    if measured is None or measured.baseline is None or measured.current is None or tuned is None:
        return Claim(title, False, ("no before and after was reported",))
    before, after = measured.baseline, measured.current
    difference = abs(injected["loss"] - plain["loss"]) / max(abs(plain["loss"]), 1e-9)
    figures = (
        *_gains(others),
        f"{final.metadata.name}, asked to take less memory: step "
        f"{before.step_seconds * 1000:.1f} ms -> {after.step_seconds * 1000:.1f} ms "
        f"({before.step_seconds / after.step_seconds:.2f}x), peak "
        f"{format_memory(before.peak_memory_bytes)} -> {format_memory(after.peak_memory_bytes)}",
        f"settings: {tuned.precision.value}, {tuned.batch_per_step or 'all'} samples at once, "
        f"checkpointing {_on(tuned.activation_checkpointing)}, compile {_on(tuned.compile)}, "
        f"loader workers {tuned.data_loader_workers}",
        *final.status.explain[:12],
        f"loss {injected['loss']:.6f} against {plain['loss']:.6f} without GPUJob: "
        f"{difference:.2%} apart (tolerance {LOSS_TOLERANCE:.0%})",
    )
    return Claim(title, difference <= LOSS_TOLERANCE and bool(final.status.explain), figures)


def _gains(jobs: Iterable[GPUJob]) -> Iterator[str]:
    """What each job gained from settings that a measurement chose."""
    for job in jobs:
        measured = job.status.measurement
        if measured is None or measured.baseline is None or measured.current is None:
            continue
        before, after = measured.baseline.step_seconds, measured.current.step_seconds
        yield (
            f"{job.metadata.name}, chosen by measurement: step {before * 1000:.1f} ms -> "
            f"{after * 1000:.1f} ms ({before / after:.2f}x)"
        )


def nothing_lost(
    states: Sequence[GPUJob], moved: dict[str, Any], reference: dict[str, Any], grace_seconds: float
) -> Claim:
    final = states[-1]
    resumed = next((j for j in states if j.status.resumed_from_step is not None), None)
    saved = next((j for j in states if j.status.counters.interruptions > 0), None)
    title = "Spot node lost, nothing lost: same weights and loss as an uninterrupted run"
    if resumed is None or saved is None or saved.status.checkpoint is None:
        return Claim(
            title, False, ("no interruption with a checkpoint and a resumed run was seen",)
        )
    equal = moved["weights"] == reference["weights"]
    equal = equal and moved["loss"] == reference["loss"]
    figures = (
        f"attempt 1 committed step {saved.status.checkpoint.step} within "
        f"{grace_seconds:.0f} s of grace, attempt {final.status.attempt} continued after step "
        f"{resumed.status.resumed_from_step}",
        f"final loss {moved['loss']!r} and {reference['loss']!r}",
        f"weights {moved['weights'][:16]}... and {reference['weights'][:16]}...",
    )
    kept = resumed.status.resumed_from_step == saved.status.checkpoint.step
    return Claim(title, equal and kept and final.status.attempt == 2, figures)


def instant(first: Sequence[GPUJob], second: Sequence[GPUJob], profile: GPUProfile | None) -> Claim:
    title = "Second time is instant: settings and reservation come from the profile"
    ran_first, ran_second = first[-1].status, second[-1].status
    if profile is None or ran_first.tuned is None:
        return Claim(title, False, ("no profile with settings was saved",))
    same = ran_second.tuned == ran_first.tuned
    probed = ran_second.tuning_seconds or 0.0
    figures = (
        f"profile {profile.metadata.name}: {len(profile.status.entries)} card model",
        f"first run tuned for {ran_first.tuning_seconds or 0.0:.1f} s, second for {probed:.1f} s",
        f"second run started with the first one's settings: {'yes' if same else 'no'}",
    )
    return Claim(title, same and probed == 0.0 and (ran_first.tuning_seconds or 0) > 0, figures)


def read_result(path: Path) -> dict[str, Any]:
    """What a training script wrote with --result."""
    return json.loads(path.read_text())


def _with_source(states: Sequence[GPUJob], source: ReservationSource) -> GPUJob | None:
    return next(
        (j for j in states if j.status.reservation and j.status.reservation.source is source), None
    )


def _name(states: Sequence[GPUJob]) -> str:
    return states[-1].metadata.name


def _hint(job: GPUJob) -> int:
    return job.spec.gpu.memory.bytes if job.spec.gpu.memory is not None else 0


def _held(job: GPUJob) -> int:
    return job.status.reservation.memory_bytes if job.status.reservation is not None else 0


def _used(job: GPUJob) -> int:
    return job.status.measurement.memory_bytes if job.status.measurement is not None else 0


def _cards(job: GPUJob) -> set[str]:
    placement = job.status.placement
    return set() if placement is None else {uuid for w in placement.workers for uuid in w.gpus}


def _on(value: bool) -> str:
    return "on" if value else "off"
