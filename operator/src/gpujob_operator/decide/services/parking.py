"""Decides which replicas park, and which wake.

1. All replicas of a service park after `parkAfterSeconds` without requests. From then on the gates
   get no addresses, so that requests are held.
2. A replica is asked to park once no gate sends requests to replicas any more.
3. A request wakes all of them, even if its client leaves, or one of them answers it, before the
   others are awake. A request to a replica that has not parked yet does the same. Without reports
   of the gates, each replica stays as it is.
4. A replica that does not wake in time is replaced: its GPU has no memory left for it, or its
   process does not answer.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpujob_api.gpujob import ReservationSource
from gpujob_api.gpuservice import GPUService
from gpujob_operator.decide.model.gates import Gate
from gpujob_operator.decide.model.snapshot import Parking
from gpujob_operator.decide.services.gates import Demand, fresh_reports, ready_for_seconds
from gpujob_operator.decide.services.replicas import Replica

# The longest times from the first request until the reservation is complete again, and until the
# replica answers.
ROOM_WITHIN = timedelta(seconds=5)
AWAKE_WITHIN = timedelta(seconds=60)


def parking_of(
    service: GPUService,
    replicas: Sequence[Replica],
    gates: Sequence[Gate],
    demand: Demand,
    waking_since: Mapping[str, datetime],
    now: datetime,
) -> tuple[Parking, ...]:
    """Returns the requests to the replicas. A replica without one stays as it is."""
    after_seconds = service.spec.replicas.park_after_seconds
    live = [one for one in replicas if one.live]
    if after_seconds is None or service.spec.suspend:
        # The spec was edited. A parked replica would answer nothing.
        return tuple(_wake(one) for one in live if one.parked)
    wakes = any(one.has_moved and one.job.metadata.uid in waking_since for one in live)
    if demand.held or wakes:
        return tuple(map(_wake, live))
    if demand.idle_seconds is None or not live:
        return ()
    if demand.idle_seconds < after_seconds:
        # Replicas that answer may need the parked ones. If none answers, the gate may be new: its
        # time without requests begins at its own start.
        some_answer = any(one.ready for one in live)
        return tuple(_wake(one) for one in live if one.parked and some_answer)
    if not all(map(_may_park, live)):
        return ()
    if not all(one.parked for one in live) and ready_for_seconds(service, now) < after_seconds:
        return ()
    routed = any(report.replicas != 0 for report in fresh_reports(gates, now))
    return tuple(Parking(one.job.metadata.uid, parks=not routed, rests=True) for one in live)


def _wake(replica: Replica) -> Parking:
    return Parking(replica.job.metadata.uid, parks=False)


def _may_park(replica: Replica) -> bool:
    """Returns whether the replica is parked, or would give memory back if it parked."""
    return replica.parked or (replica.ready and not why_it_stays(replica))


def why_it_stays(replica: Replica) -> str:
    """Returns why a replica that answers cannot park, or ""."""
    if replica.report is None:
        return "it has not reported yet"
    if not replica.report.can_park:
        return "its process cannot (`batched`, or a reason in its log)"
    held = replica.job.status.reservation
    if held is None or held.source is not ReservationSource.MEASURED:
        return "its reservation is not measured"
    return ""


def not_woken(
    replicas: Sequence[Replica], waking_since: Mapping[str, datetime], now: datetime
) -> dict[str, str]:
    """Returns the reason for each replica that has to be replaced, by the replica's name."""
    found: dict[str, str] = {}
    for one in replicas:
        since = waking_since.get(one.job.metadata.uid)
        # Readiness does not count: the probe of a process that hangs may fail.
        if since is None or not (one.live and one.has_moved):
            continue
        held = one.job.status.reservation
        waits = held is not None and held.source is ReservationSource.PARKED
        if waits and now - since >= ROOM_WITHIN:
            found[one.name] = "its GPU has no memory left to wake it"
        elif now - since >= AWAKE_WITHIN:
            found[one.name] = f"it did not wake within {AWAKE_WITHIN.total_seconds():.0f} s"
    return found
