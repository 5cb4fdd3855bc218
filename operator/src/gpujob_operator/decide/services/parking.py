"""Which replicas park, and which wake.

1. All replicas of a service park after `parkAfterSeconds` without requests. From then on the gates
   get no addresses, so that requests are held.
2. A replica is asked to park once no gate sends requests to replicas any more.
3. A request wakes all of them, also if its client leaves before, or one of them answers it first.
   So does a request that goes to one that has not parked. Without reports of the gates, each stays
   as it is.
4. A replica that does not wake in time is replaced: its GPU has no memory left for it, or its
   process does not answer.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpujob_api.gpujob import ReservationSource
from gpujob_api.gpuservice import GPUService
from gpujob_operator.decide.model.gates import Gate
from gpujob_operator.decide.model.service_plan import ReplicaParking
from gpujob_operator.decide.services.gates import Demand, fresh_reports, ready_for_seconds
from gpujob_operator.decide.services.replicas import Replica

# From the first request until the reservation has to be complete again, and until the replica has
# to answer.
ROOM_WITHIN = timedelta(seconds=5)
AWAKE_WITHIN = timedelta(seconds=60)


def parking_of(
    service: GPUService,
    replicas: Sequence[Replica],
    gates: Sequence[Gate],
    demand: Demand,
    waking_since: Mapping[str, datetime],
    now: datetime,
) -> tuple[ReplicaParking, ...]:
    """Returns what each replica is asked to do. One that is left out stays as it is."""
    after_seconds = service.spec.replicas.park_after_seconds
    live = [one for one in replicas if one.live]
    if after_seconds is None or service.spec.suspend:
        # Of an edited spec. A parked replica would answer nothing.
        return tuple(_wake(one) for one in live if one.parked)
    wakes = any(one.has_moved and one.job.metadata.uid in waking_since for one in live)
    if demand.held or wakes:
        return tuple(map(_wake, live))
    if demand.idle_seconds is None or not live:
        return ()
    if demand.idle_seconds < after_seconds:
        # Those that answer may need the others. A new gate has no requests of the time before it.
        some_answer = any(one.ready for one in live)
        return tuple(_wake(one) for one in live if one.parked and some_answer)
    if not all(map(_may_park, live)):
        return ()
    if not all(one.parked for one in live) and ready_for_seconds(service, now) < after_seconds:
        return ()
    routed = any(report.replicas != 0 for report in fresh_reports(gates, now))
    return tuple(
        ReplicaParking(one.job.metadata.uid, one.name, parks=not routed, rests=True) for one in live
    )


def _wake(replica: Replica) -> ReplicaParking:
    return ReplicaParking(replica.job.metadata.uid, replica.name, parks=False)


def _may_park(replica: Replica) -> bool:
    """Returns whether the replica is parked, or would give memory back if it parked."""
    if replica.parked:
        return True
    held = replica.job.status.reservation
    measured = held is not None and held.source is ReservationSource.MEASURED
    able = replica.report is not None and replica.report.can_park
    return replica.ready and measured and able


def not_woken(
    replicas: Sequence[Replica], waking_since: Mapping[str, datetime], now: datetime
) -> dict[str, str]:
    """Returns the replicas that have to be replaced, by name, with the reason."""
    found: dict[str, str] = {}
    for one in replicas:
        since = waking_since.get(one.job.metadata.uid)
        # Its readiness probe may fail because the process hangs.
        if since is None or not (one.live and one.has_moved):
            continue
        held = one.job.status.reservation
        waits = held is not None and held.source is ReservationSource.PARKED
        if waits and now - since >= ROOM_WITHIN:
            found[one.name] = "its GPU has no memory left to wake it"
        elif now - since >= AWAKE_WITHIN:
            found[one.name] = f"it did not wake within {AWAKE_WITHIN.total_seconds():.0f} s"
    return found
