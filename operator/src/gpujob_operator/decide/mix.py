"""The mix of requests in a snapshot: what placement expects the jobs still to come to look like."""

import math
from collections.abc import Mapping
from dataclasses import replace

from gpujob_api.gpujob import ReservationSource
from gpujob_operator.decide.capacity import Capacity
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.fragmentation import Demand, Mix
from gpujob_operator.decide.needs import Needs

# Counts come in steps of this many to a doubling: a job more or less changes no mix of thousands,
# and what is computed from the mix stays.
STEPS_PER_DOUBLING = 2


def steady_mix(counts: Mapping[Demand, float]) -> Mix:
    """The mix of these requests, each worker of each unfinished job counted once, with counts
    rounded to steps of 41 %."""
    return Mix.of({demand: _step(count) for demand, count in counts.items() if count > 0})


def _step(count: float) -> float:
    return 2 ** (round(math.log2(count) * STEPS_PER_DOUBLING) / STEPS_PER_DOUBLING)


def demand_of(
    needs: Needs, models: list[str], capacity: Capacity, configuration: Configuration
) -> Demand:
    """What one worker of the job asks for: waiting by what it needs, placed by what it holds."""
    wanted_models = needs.job.spec.gpu.models
    placement, held = needs.job.status.placement, needs.job.status.reservation
    if placement is not None and held is not None:
        whole = held.source is ReservationSource.WHOLE_CARD
        demand = needs.demand(placement.gpu_model, None if whole else held)
    else:
        model = next((m for m in models if not wanted_models or m in wanted_models), "")
        wanted = needs.reservation(model, capacity.largest_bytes(model), configuration)
        demand = needs.demand(model, wanted)
    return replace(demand, models=frozenset(wanted_models))
