"""What others on its cards change for a running job that rests: mostly nothing, and then nothing of
it is looked at again."""

from collections.abc import Sequence

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.capacity.calibration import with_pace
from gpujob_operator.decide.capacity.cluster import Capacity, Card
from gpujob_operator.decide.lifecycle.printer_columns import cost_text
from gpujob_operator.decide.measurement.reservation import profile_entry
from gpujob_operator.decide.measurement.slowdown import is_slowed, measured_slowdown, observed_pace


def change_nothing(
    job: GPUJob,
    status: GPUJobStatus,
    profile: GPUProfile | None,
    cards: Sequence[Card],
    capacity: Capacity,
) -> bool:
    """Whether nothing follows from who is on the job's cards now, if nothing followed from who was
    there before and all else is as it was. `status` is the job's next one.

    Every way in which a neighbour shows in a status, a profile or a reason to stop is asked here;
    False where it has to be looked at in full.
    """
    shared = False
    for card in cards:
        if card.blocked or card.free_bytes < 0:
            return False
        shared = shared or len(card.tenants) > 1
    if not shared:
        # Alone again: its profile may learn how fast that is.
        return False
    slowdown = measured_slowdown(job, status, profile, cards)
    if is_slowed(job.status) is not (slowdown is not None and slowdown.too_much):
        return False
    if cost_text(job, status, capacity) != job.status.summary.cost:
        return False
    return not _tells_a_pace(status, profile, cards)


def _tells_a_pace(status: GPUJobStatus, profile: GPUProfile | None, cards: Sequence[Card]) -> bool:
    """Whether the profile has yet to learn how much the job is slowed by as many others."""
    pace = observed_pace(status, profile, cards)
    if pace is None or status.placement is None:
        return False
    entry = profile_entry(profile, status.placement.gpu_model)
    known = entry.shared if entry is not None else ()
    return with_pace(known, pace) != known
