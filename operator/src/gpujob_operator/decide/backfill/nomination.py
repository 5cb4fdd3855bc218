"""The GPUs nominated for a job that does not fit now, and when the job could start there (I11).

`earliest_start` finds for every GPU the time at which enough of its tenants are expected to have
ended. The nomination takes the GPUs that are ready first. All are of one model, and those of one
worker are on one node. A nomination holds for the rest of the cycle. Jobs expected to finish before
the nominated job starts may still run there (backfill).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf

from gpujob_operator.decide.backfill.earliest_start import CandidateGpus
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.placement.requirements import JobRequirements

# Until an agent has read its GPUs again and told it.
READING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Nomination:
    """The GPUs, and in how many seconds the job could start on them (infinite: unknown).

    `making_room` names the jobs on them that are being stopped.
    """

    uuids: frozenset[str]
    start_seconds: float
    making_room: tuple[str, ...] = ()


def earliest_start(
    needs: JobRequirements,
    candidates: Iterable[Iterable[CandidateGpus]],
    releases: ReleaseTimes,
    nominated: frozenset[str] = frozenset(),
) -> Nomination | None:
    """The nomination with the earliest start, of the candidates on each model in order (see
    `earliest_start`); None when the job would not even fit were all our jobs gone. GPUs in
    `nominated` are an earlier job's."""
    workers = needs.job.spec.workers
    best: list[CandidateGpus] | None = None
    for of_model in candidates:
        free = (place for place in of_model if nominated.isdisjoint(place.uuids))
        chosen = list(islice(free, workers))
        if len(chosen) == workers and (best is None or chosen[-1] < best[-1]):
            best = chosen
    if best is None:
        return None
    tenants = {tenant.job_uid for place in best for tenant in place.tenants}
    readings = (READING_SECONDS for place in best if place.awaiting_reading)
    return Nomination(
        uuids=frozenset(uuid for place in best for uuid in place.uuids),
        start_seconds=max(best[-1].soon.at - releases.now_seconds, *readings, 0.0),
        making_room=tuple(sorted(uid for uid in tenants if releases.stopping(uid))),
    )


def describe_start(nomination: Nomination) -> str:
    """When the job could start, for its condition; "" when nobody can tell."""
    if nomination.start_seconds == inf:
        return ""
    return f"could start in about {max(nomination.start_seconds, 1.0):.0f} s"
