"""Assigns GPUs to all workers of one job or to none, and gives the reasons if the job fits nowhere.

On GPUs of one model, `select.choose` orders places by the spot policy, then the lowest cost for
future jobs, then the cheaper node, then the first name. `select.choose_gang` orders places of gangs
by the spot policy and then by closeness. `_best` chooses between models. The result is stable: the
same snapshot always gives the same answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from gpujob_api.gpujob import Placement, Reservation, ReservationSource, SpotPolicy, WorkerPlacement
from gpujob_operator.decide.capacity.cluster import GPUCapacity, Tenant
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.packing.request import Request
from gpujob_operator.decide.placement.assumed import AssumedCapacity, WorkerPlace
from gpujob_operator.decide.placement.diagnosis import Diagnosis, diagnose, no_model
from gpujob_operator.decide.placement.node_filter import why_not_on
from gpujob_operator.decide.placement.requirements import JobRequirements, WorkerRequest, resolve
from gpujob_operator.decide.placement.step_cost import StepCost, step_cost

# How many combinations of nodes are tried for a gang for which some combinations were refused.
COMBINATIONS_MAX = 16


@dataclass(frozen=True, slots=True)
class Assignment:
    """The placement and reservation of a job. `assume` applies it for the rest of the cycle."""

    placement: Placement
    reservation: Reservation
    request: Request
    places: tuple[WorkerPlace, ...]
    tenant: Tenant
    # The step cost, if it was compared with the cost on other models.
    step_cost: StepCost

    def assume(self, assumed: AssumedCapacity) -> None:
        for place in self.places:
            assumed.assume(place, self.request, self.tenant)


def assign(
    requirements: JobRequirements,
    assumed: AssumedCapacity,
    configuration: Configuration,
    expected_run_seconds: float = inf,
) -> Assignment | Diagnosis:
    """Returns a place for every worker of the job, or the reasons why there is none.

    The capacity is unchanged. All GPUs of a gang are of one model, so that its workers run at the
    same speed. Nodes that meet all preferences of the template come first.
    `expected_run_seconds` is how long the job will run, if that is known: short jobs
    may backfill nominated GPUs.
    """
    if requirements.preferred:
        preferred = requirements.on_preferred_nodes
        found = assign(preferred, assumed, configuration, expected_run_seconds)
        if isinstance(found, Assignment):
            return found
    backfill = assumed.may_backfill(expected_run_seconds)
    signature = (requirements.scheduling_signature, backfill)
    known = assumed.unfit_classes.get(signature)
    if isinstance(known, Diagnosis):
        return known
    fitting: list[Assignment] = []
    diagnoses: list[Diagnosis] = []
    for model in requirements.models(assumed.capacity):
        found = _assign_on_model(requirements, model, assumed, configuration, backfill=backfill)
        if isinstance(found, Diagnosis):
            diagnoses.append(found)
        else:
            fitting.append(found)
    if fitting:
        return _best(fitting, requirements)
    diagnoses = diagnoses or [no_model(requirements, assumed)]
    refusal = next((one for one in diagnoses if one.could_ever_fit), diagnoses[0])
    assumed.unfit_classes[signature] = refusal
    return refusal


def _best(fitting: list[Assignment], requirements: JobRequirements) -> Assignment:
    """Chooses between GPU models.

    The order is the spot policy, then the lower money and energy of a step, each only if it is
    known on all models, then the smaller reservation, then the model's name.
    """
    prefer = requirements.spot is SpotPolicy.PREFER
    priced = all(one.step_cost.dollars is not None for one in fitting)
    metered = all(one.step_cost.joules is not None for one in fitting)

    def compared(one: Assignment) -> StepCost:
        cost = one.step_cost
        return StepCost(cost.dollars if priced else None, cost.joules if metered else None)

    def key(one: Assignment) -> tuple[object, ...]:
        wrong, cost = prefer and not one.placement.spot, compared(one)
        held = one.reservation.memory_bytes
        return wrong, cost.dollars or 0.0, cost.joules or 0.0, held, one.placement.gpu_model

    best = min(fitting, key=key)
    return replace(best, step_cost=compared(best))


def _assign_on_model(
    requirements: JobRequirements,
    model: str,
    assumed: AssumedCapacity,
    configuration: Configuration,
    *,
    backfill: bool,
) -> Assignment | Diagnosis:
    asked = resolve(requirements, model, assumed.capacity, configuration)
    request = _request(asked, assumed)
    places = _places(requirements, request, assumed, configuration, backfill=backfill)
    complete = len(places) == requirements.job.spec.workers
    if not complete and not places:
        return diagnose(asked, assumed, assumed.capacity, 0)
    held = asked.wanted or min(
        (_whole(requirements, place.gpus) for place in places), key=lambda whole: whole.memory_bytes
    )
    if not complete:
        rest = assumed.with_assumed(places, request, _tenant(requirements, held))
        return diagnose(asked, assumed, rest, len(places))
    placement = Placement(
        workers=tuple(
            WorkerPlacement(rank, place.node, tuple(gpu.uuid for gpu in place.gpus))
            for rank, place in enumerate(places)
        ),
        spot=all(assumed.capacity.nodes[place.node].node.spot for place in places),
        gpu_model=model,
    )
    return Assignment(
        placement=placement,
        reservation=held,
        request=request,
        places=tuple(places),
        tenant=_tenant(requirements, held),
        step_cost=step_cost(requirements.profile, placement, assumed.capacity.nodes),
    )


def _places(
    requirements: JobRequirements,
    request: Request,
    assumed: AssumedCapacity,
    configuration: Configuration,
    *,
    backfill: bool,
) -> list[WorkerPlace]:
    """Returns one place for each worker that fits.

    Workers of a gang never share a GPU, because NCCL refuses collective communication between
    processes on one GPU.
    """
    workers = requirements.job.spec.workers
    if workers > 1:
        labels, spread = configuration.topology_labels, requirements.spread

        def choose(request: Request) -> list[WorkerPlace]:
            return assumed.choose_gang(
                request,
                workers,
                labels,
                spread,
                no_external_use=requirements.exclusive,
                backfill=backfill,
            )

        found = choose(request)
        if len(found) == workers or not requirements.refused_sets:
            return found
        return _not_together(requirements, request, assumed, choose) or found
    place = assumed.choose(request, no_external_use=requirements.exclusive, backfill=backfill)
    return [place] if place is not None else []


def _not_together(
    requirements: JobRequirements,
    request: Request,
    assumed: AssumedCapacity,
    choose: Callable[[Request], list[WorkerPlace]],
) -> list[WorkerPlace]:
    """Returns places in a combination of nodes that was not refused.

    Nodes that were only refused together with others are allowed. Each node of a refused
    combination is left out in turn. Returns no places if no combination is found within
    `COMBINATIONS_MAX` tries.
    """
    refused, requirements = requirements.refused_sets, requirements.with_tried_nodes
    left_out: list[frozenset[str]] = [frozenset()]
    for number in range(COMBINATIONS_MAX):
        if number == len(left_out):
            break
        without = left_out[number]
        mask = assumed.mask(
            (requirements.node_constraints, without),
            lambda node, without=without: (
                node.name not in without and not why_not_on(requirements, node)
            ),
        )
        places = choose(replace(request, nodes=mask))
        if len(places) < requirements.job.spec.workers:
            continue
        nodes = frozenset(place.node for place in places)
        if nodes not in refused:
            return places
        left_out += [more for name in sorted(nodes) if (more := without | {name}) not in left_out]
    return []


def _request(asked: WorkerRequest, assumed: AssumedCapacity) -> Request:
    requirements = asked.requirements
    mask = assumed.mask(
        requirements.node_constraints, lambda node: not why_not_on(requirements, node)
    )
    return Request(
        demand=asked.demand,
        nodes=mask,
        prefers_spot=requirements.spot is SpotPolicy.PREFER,
        utilization_limit_percent=summed_utilization_limit_percent(
            asked.max_slowdown_percent, assumed.capacity.law(asked.model)
        ),
        party=requirements.party,
    )


def _tenant(requirements: JobRequirements, held: Reservation) -> Tenant:
    return Tenant(
        job_uid=requirements.job.metadata.uid,
        memory_bytes=held.memory_bytes,
        utilization_percent=held.utilization_percent,
        whole_gpu=held.source is ReservationSource.WHOLE_GPU,
        max_slowdown_percent=requirements.job.spec.sharing.max_slowdown_percent,
        party=requirements.party,
    )


def _whole(requirements: JobRequirements, gpus: tuple[GPUCapacity, ...]) -> Reservation:
    """Returns the smallest of the whole GPUs. GPUs of one model can differ in driver-reserved
    memory.
    """
    return Reservation(
        memory_bytes=min(gpu.free_bytes for gpu in gpus),
        utilization_percent=100.0,
        source=ReservationSource.WHOLE_GPU,
        exclusive=requirements.exclusive,
    )
