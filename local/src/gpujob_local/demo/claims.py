"""The claims of the demo as pure checks of the observations."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJob, ReservationSource
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.quantities import format_memory
from gpujob_api.settings import TunedSettings
from gpujob_local.demo.telling import Claim
from gpujob_local.demo.turns import PAIRS, Comparison

# Relative tolerance for the loss of a tuned run against the plain one. bfloat16 keeps 8 bits of
# mantissa.
LOSS_TOLERANCE = 0.05


def packed(
    first: Sequence[GPUJob], joined: GPUJob, others: Iterable[GPUJob], card_bytes: int
) -> Claim:
    """Checks that a job ran alone, was measured and made room, and that a second one joined a used
    card.

    `others` are the remaining jobs as they were when `joined` was placed.
    """
    alone = _with_source(first, ReservationSource.WHOLE_GPU)
    measured = _with_source(first, ReservationSource.MEASURED)
    neighbours = [job for job in others if _gpus(job) & _gpus(joined)]
    title = "Packed by measurement: declared figures alone would have needed a second card"
    if alone is None or measured is None or not neighbours:
        return Claim(title, False, ("no reservation shrank, or no job joined",))
    hints = sum(_hint(job) for job in (joined, *neighbours))
    held = sum(_held(job) for job in (joined, *neighbours))
    figures = (
        f"{measured.metadata.name} reserved {format_memory(_held(alone))}, was measured at "
        f"{format_memory(_used(measured))} and then reserved {format_memory(_held(measured))}",
        f"{joined.metadata.name} joined {', '.join(job.metadata.name for job in neighbours)} on "
        f"{', '.join(sorted(_gpus(joined)))} with {format_memory(_held(joined))} from the profile",
        f"declared together {format_memory(hints)}, reserved together {format_memory(held)}, "
        f"the card has {format_memory(card_bytes)}",
    )
    return Claim(title, hints > card_bytes >= held, figures)


def unmanaged_process_respected(
    waiting: GPUJob, final: GPUJob, unmanaged_bytes: int, card_bytes: int
) -> Claim:
    condition = next(c for c in waiting.status.conditions if c.type == "Scheduled")
    numbers = " short)" in condition.message and "unmanaged processes" in condition.message
    holds = waiting.status.placement is None and numbers and final.status.attempt == 1
    return Claim(
        "Coexists with unmanaged processes: nothing is placed where it no longer fits",
        holds,
        (
            f"an unmanaged process allocated {format_memory(unmanaged_bytes)} "
            f"of {format_memory(card_bytes)}",
            f"{waiting.metadata.name} waited: {condition.message}",
            f"it was placed once the unmanaged process was gone: {final.status.summary.where}",
        ),
    )


def optimized(job: GPUJob, learned: dict[str, Any], comparison: Comparison | None) -> Claim:
    """Checks that settings are applied, that all of their interval is faster, and that the losses
    agree.

    `learned` is the result of the job itself, which chose the settings while it trained.
    """
    title = "Injected settings are applied and faster; an unmodified script learns the same"
    tuned = job.status.tuned
    if tuned is None or comparison is None:
        return Claim(title, False, ("no settings were tuned",))
    name, speedup = job.metadata.name, comparison.speedup
    seconds = (comparison.plain_seconds, comparison.tuned_seconds)
    plain, fast = (f"{statistics.median(each) * 1000:.1f} ms" for each in seconds)
    # Without any changed setting nothing was injected, whatever was measured.
    in_force = comparison.in_force == tuned != TunedSettings()
    losses = (learned["loss"], comparison.tuned_loss)
    apart = max(abs(loss - comparison.plain_loss) for loss in losses)
    apart /= max(abs(comparison.plain_loss), 1e-9)
    figures = (
        f"{name}, in turns on one card: step {plain} -> {fast}, "
        f"{speedup.median:.2f}x (95 % {speedup.low:.2f} to {speedup.high:.2f}, {PAIRS} pairs)",
        f"applied: {', '.join(_changed(comparison.in_force)) or 'nothing'}",
        *(line for line in job.status.explain if " applied: " in line),
        f"loss {losses[0]:.6f} in the job, {losses[1]:.6f} tuned from the start, "
        f"{comparison.plain_loss:.6f} without GPUJob: within {apart:.2%} (tolerance "
        f"{LOSS_TOLERANCE:.0%})",
    )
    return Claim(title, in_force and speedup.low > 1 and apart <= LOSS_TOLERANCE, figures)


def _changed(tuned: TunedSettings | None) -> list[str]:
    """Returns the settings that differ from a script as written."""
    if tuned is None:
        return []
    written = encode(TunedSettings())
    return [
        name if value is True else f"{name} {value}"
        for name, value in encode(tuned).items()
        if value != written.get(name)
    ]


def nothing_lost(
    states: Sequence[GPUJob], moved: dict[str, Any], reference: dict[str, Any], grace_seconds: float
) -> Claim:
    final = states[-1]
    resumed = next((j for j in states if j.status.resumed_from_step is not None), None)
    saved = next((j for j in states if j.status.counters.interruptions > 0), None)
    title = "Spot node lost, no work lost: same weights and loss as an uninterrupted run"
    if resumed is None or saved is None or saved.status.checkpoint is None:
        return Claim(title, False, ("no interruption with a checkpoint, or no resumed run",))
    equal = moved["weights"] == reference["weights"]
    equal = equal and moved["loss"] == reference["loss"]
    figures = (
        f"attempt 1 saved step {saved.status.checkpoint.step} within "
        f"{grace_seconds:.0f} s of grace, attempt {final.status.attempt} resumed after step "
        f"{resumed.status.resumed_from_step}",
        f"final loss {moved['loss']!r} and {reference['loss']!r}",
        f"weights {moved['weights'][:16]}... and {reference['weights'][:16]}...",
    )
    kept = resumed.status.resumed_from_step == saved.status.checkpoint.step
    return Claim(title, equal and kept and final.status.attempt == 2, figures)


def instant(first: Sequence[GPUJob], second: Sequence[GPUJob], profile: GPUProfile | None) -> Claim:
    title = "The second run starts tuned: settings and reservation come from the profile"
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


def _with_source(states: Sequence[GPUJob], source: ReservationSource) -> GPUJob | None:
    return next(
        (j for j in states if j.status.reservation and j.status.reservation.source is source), None
    )


def _hint(job: GPUJob) -> int:
    return job.spec.gpu.memory.bytes if job.spec.gpu.memory is not None else 0


def _held(job: GPUJob) -> int:
    return job.status.reservation.memory_bytes if job.status.reservation is not None else 0


def _used(job: GPUJob) -> int:
    return job.status.measurement.memory_bytes if job.status.measurement is not None else 0


def _gpus(job: GPUJob) -> set[str]:
    placement = job.status.placement
    return set() if placement is None else {uuid for w in placement.workers for uuid in w.gpus}
