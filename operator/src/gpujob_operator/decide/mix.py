"""The mix of requests in a snapshot: what placement expects the jobs still to come to look like."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpujob_api.gpujob import GPUJob, ReservationSource
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.capacity import Capacity
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.fragmentation import Demand, Mix
from gpujob_operator.decide.needs import needs_of


def mix_of(
    jobs: Iterable[GPUJob],
    profiles: Mapping[str, GPUProfile],
    capacity: Capacity,
    configuration: Configuration,
) -> Mix:
    """Every worker of every unfinished job counts once: waiting ones by what they need, placed
    ones by what they hold."""
    models = sorted({card.model for node in capacity.nodes.values() for card in node.cards})
    counts: dict[Demand, float] = {}
    for job in jobs:
        if job.finished:
            continue
        demand = _demand(job, profiles.get(job.metadata.uid), models, capacity, configuration)
        counts[demand] = counts.get(demand, 0.0) + job.spec.workers
    return Mix.of(counts)


def _demand(
    job: GPUJob,
    profile: GPUProfile | None,
    models: list[str],
    capacity: Capacity,
    configuration: Configuration,
) -> Demand:
    needs = needs_of(job, profile)
    wanted_models = job.spec.gpu.models
    placement, held = job.status.placement, job.status.reservation
    if placement is not None and held is not None:
        whole = held.source is ReservationSource.WHOLE_CARD
        demand = needs.demand(placement.gpu_model, None if whole else held)
    else:
        model = next((m for m in models if not wanted_models or m in wanted_models), "")
        wanted = needs.reservation(model, capacity.largest_bytes(model), configuration)
        demand = needs.demand(model, wanted)
    return replace(demand, models=frozenset(wanted_models))
