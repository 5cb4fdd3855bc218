"""The reservation of a replica while it is parked, and before it wakes.

1. The replica reports that its weights are in the memory of the host. Its reservation falls to the
   newest reading and a margin. Other jobs may be placed in the rest.
2. Before the replica wakes, the reservation grows to the measured peak again, if its GPU has as
   much free memory. The replica is asked to wake once that reservation is durable (`port.parking`).
"""

from collections.abc import Callable

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJobStatus, Reservation, ReservationSource
from gpujob_api.quantities import format_memory
from gpujob_api.serving import ServingReport
from gpujob_operator.decide.measurement.reservation import with_margin
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import EventNote
from gpujob_operator.decide.model.snapshot import GPUUsage

# After this time, the newest reading is one without the weights.
SETTLED_SECONDS = 10.0


def is_parked(status: GPUJobStatus, serving: ServingReport | None) -> bool:
    """Returns whether the reservation follows the rules of this module."""
    held = status.reservation
    if held is not None and held.source is ReservationSource.PARKED:
        return True
    return serving is not None and serving.parked_seconds is not None


def with_parked_reservation(
    status: GPUJobStatus,
    serving: ServingReport | None,
    usage: GPUUsage | None,
    parks: bool | None,
    configuration: Configuration,
    most_bytes: Callable[[], int],
) -> tuple[GPUJobStatus, tuple[EventNote, ...]]:
    """Returns the status of a job for which `is_parked` holds.

    `parks` is the request to the replica: True to park, False to wake, None for neither.
    `most_bytes` returns the largest reservation for which its GPUs have room.
    """
    held = status.reservation
    if held is None:
        return status, ()
    if held.source is ReservationSource.PARKED:
        awake = serving is not None and serving.parked_seconds is None
        if parks is False or awake:
            return _woken(status, held, awake, configuration, most_bytes)
        return status, ()
    settled = serving is not None and (serving.parked_seconds or 0.0) >= SETTLED_SECONDS
    if not (parks and settled) or usage is None or held.source is not ReservationSource.MEASURED:
        return status, ()
    kept_bytes = with_margin(usage.memory_bytes, configuration)
    if kept_bytes >= held.memory_bytes:
        return status, ()
    parked = Reservation(kept_bytes, 0.0, ReservationSource.PARKED)
    return changed(status, reservation=parked), (_note("Parked", held, parked),)


def _woken(
    status: GPUJobStatus,
    held: Reservation,
    awake: bool,
    configuration: Configuration,
    most_bytes: Callable[[], int],
) -> tuple[GPUJobStatus, tuple[EventNote, ...]]:
    """Returns the status with all of the memory again, or as it is if that is not free.

    A replica that is awake without a request uses the memory already, so it gets all that is free.
    """
    known = status.measurement
    known_bytes = known.memory_bytes if known is not None else 0
    full_bytes = max(held.memory_bytes, with_margin(known_bytes, configuration))
    granted_bytes = min(full_bytes, most_bytes())
    if granted_bytes < full_bytes and not awake:
        return status, ()
    percent = known.utilization_percent if known is not None else held.utilization_percent
    whole = Reservation(granted_bytes, percent, ReservationSource.MEASURED)
    return changed(status, reservation=whole), (_note("Woken", held, whole),)


def _note(reason: str, before: Reservation, after: Reservation) -> EventNote:
    weights = "are in the host's memory" if reason == "Parked" else "may return to the GPU"
    now, earlier = format_memory(after.memory_bytes), format_memory(before.memory_bytes)
    return EventNote(reason, f"its weights {weights}; reserves {now} instead of {earlier}")
