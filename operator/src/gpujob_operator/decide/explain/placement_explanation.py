"""Explains a placement: its score, the next best places, and the nodes that lack capacity.

Everything comes from `assign` and `select.choose` themselves. The next best place is what they
choose if the nodes of the better places are excluded. A score is the one that they compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJobStatus, Placement, Reservation
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.snapshot_edits import with_statuses, without_attempt
from gpujob_operator.decide.packing.request import Request, Score
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity, WorkerPlace
from gpujob_operator.decide.placement.diagnosis import Diagnosis, NodeLack, node_lacks
from gpujob_operator.decide.placement.gpu_filter import least_reservation_bytes
from gpujob_operator.decide.placement.requirements import JobRequirements, WorkerRequest, resolve
from gpujob_operator.decide.placement.step_cost import StepCost, step_cost
from gpujob_operator.decide.planner import plan
from gpujob_operator.decide.queue.heads import QueueHeads
from gpujob_operator.decide.queue.pending import Pending

CANDIDATES_MAX = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place for all workers. `scores` are the scores of the single workers, in GPUs.

    The score decides for one worker. A gang is placed close together. None means that the worker no
    longer fits there.
    """

    placement: Placement
    reservation: Reservation | None
    scores: tuple[Score | None, ...]
    # Price of the nodes per GPU-hour including interruptions. None if no price is set.
    prices: tuple[float | None, ...]
    # Interruptions of the nodes per hour.
    interruptions_per_hour: tuple[float, ...]
    # The step cost, if it was compared for a place that was chosen now.
    step_cost: StepCost


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """Where a job is or would be placed, and why not elsewhere.

    `chosen` is the decision, or None for a job without a placement. `best` has the places in order
    of preference. The first one is chosen unless another job takes it. `lacks` has what is missing
    on each node that cannot take a worker. `before` is the number of jobs that the same cycle
    placed first.
    """

    requirements: JobRequirements
    chosen: Candidate | None
    best: tuple[Candidate, ...]
    lacks: Mapping[str, NodeLack]
    refusal: str = ""
    before: int = 0
    # Whether the decision was made on this snapshot, not on an earlier one.
    decided_here: bool = False

    @property
    def rank(self) -> int | None:
        """Rank of the decision's nodes in `best`, or None if they are not in it."""
        chosen = _nodes(self.chosen.placement) if self.chosen is not None else None
        places = (n for n, one in enumerate(self.best) if _nodes(one.placement) == chosen)
        return next(places, None)


def explain_placement(
    snapshot: Snapshot, now: datetime, uid: str, count: int = CANDIDATES_MAX
) -> PlacementExplanation:
    """Explains the job's placement in this snapshot. Raises `FieldError` if there is no such job.

    A pending job is explained as this cycle decides it, after the jobs that the cycle places before
    it. A placed job is explained as if it were placed now, in the capacity that the other jobs
    leave.
    """
    job = next((one for one in snapshot.jobs if one.metadata.uid == uid), None)
    if job is None:
        raise FieldError("job", f"no job with UID {uid}")
    if job.finished:
        raise FieldError("job", f"{job.metadata.name} has ended and has no GPUs")
    if job.status.placement is not None:
        without = without_attempt(snapshot, job)
        held = job.status.placement, job.status.reservation
        return _explain(without, now, uid, held, count)
    placed = _placed_by(snapshot, now)
    before = _placed_before(snapshot, now, uid, placed)
    seen = with_statuses(snapshot, before)
    decided = placed.get(uid)
    held = (decided.placement, decided.reservation) if decided is not None else (None, None)
    found = _explain(seen, now, uid, held, count)
    return replace(found, before=len(before), decided_here=decided is not None)


def _nodes(placement: Placement) -> list[str]:
    return sorted(worker.node for worker in placement.workers)


_Held = tuple[Placement | None, Reservation | None]


@dataclass(slots=True)
class _Explainer:
    """One question about one snapshot."""

    requirements: JobRequirements
    capacity: Capacity
    assumed: AssumedCapacity
    configuration: Configuration
    refusal: Diagnosis | None = None
    requests: dict[str, Request] = field(default_factory=dict[str, Request])

    def best(self, count: int) -> tuple[Candidate, ...]:
        """Returns the best places in order of preference. No two places share a node."""
        found: list[Candidate] = []
        while len(found) < count:
            self.assumed.unfit_classes.clear()
            one = assign(self.requirements, self.assumed, self.configuration)
            if isinstance(one, Diagnosis):
                self.refusal = self.refusal or (None if found else one)
                break
            self.requests[one.placement.gpu_model] = one.request
            found.append(self.candidate(one.placement, one.reservation, one))
            self.assumed.left_out |= {worker.node for worker in one.placement.workers}
        self.assumed.left_out = frozenset()
        return tuple(found)

    def candidate(
        self, where: Placement, held: Reservation | None, found: Assignment | None = None
    ) -> Candidate:
        request = found.request if found is not None else self._request(where.gpu_model)
        nodes = [worker.node for worker in where.workers]
        scores = tuple(self._score(node, request) for node in nodes)
        known = [self.capacity.nodes.get(node) for node in nodes]
        prices = tuple(None if one is None else one.price_with_losses for one in known)
        rates = tuple(0.0 if one is None else one.interruptions_per_hour for one in known)
        if found is not None:
            step = found.step_cost
        else:
            step = step_cost(self.requirements.profile, where, self.capacity.nodes)
        return Candidate(where, held, scores, prices, rates, step)

    def lacks(self) -> dict[str, NodeLack]:
        """Returns what is missing on every node that could not take one worker on any model."""
        found: dict[str, NodeLack] = {}
        accepted = self.capacity.models(self.requirements.job.spec.gpu.models)
        for name, node in self.capacity.nodes.items():
            here = [model for model in accepted if any(c.model == model for c in node.gpus)]
            if not here:
                models = ", ".join(sorted({gpu.model for gpu in node.gpus})) or "no GPUs"
                text = f"no GPU of a model that the job accepts, only {models}"
                found[name] = NodeLack(text)
                continue
            lacks = [node_lacks(self._asked(model), node) for model in here]
            known = list(dict.fromkeys(one for one in lacks if one is not None))
            if None not in lacks:
                reasons = "; ".join(one.reasons for one in known)
                found[name] = NodeLack(reasons, "".join(one.closest for one in known))
        return found

    def _asked(self, model: str) -> WorkerRequest:
        return resolve(self.requirements, model, self.capacity, self.configuration)

    def _request(self, model: str) -> Request | None:
        """Returns the request on this model, if a place was found on it."""
        known = self.requests.get(model)
        return replace(known, nodes=None) if known is not None else None

    def _score(self, node: str, request: Request | None) -> Score | None:
        if request is None or node not in self.capacity.nodes:
            return None
        return self.assumed.score(
            WorkerPlace(node, ()), request, no_external_use=self.requirements.exclusive
        )


def _explain(
    snapshot: Snapshot, now: datetime, uid: str, held: _Held, count: int
) -> PlacementExplanation:
    memory = SchedulerCache.of(snapshot)
    memory.update(snapshot, now)
    assumed = AssumedCapacity.of(memory.capacity, memory.mix)
    explainer = _Explainer(
        memory.requirements(uid), memory.capacity, assumed, snapshot.configuration
    )
    best = explainer.best(count)
    where, reservation = held
    chosen = explainer.candidate(where, reservation) if where is not None else None
    refusal = explainer.refusal
    return PlacementExplanation(
        requirements=explainer.requirements,
        chosen=chosen,
        best=best,
        lacks=explainer.lacks(),
        refusal=refusal.message if refusal is not None else "",
    )


def _placed_by(snapshot: Snapshot, now: datetime) -> dict[str, GPUJobStatus]:
    """Returns the statuses of the jobs that this cycle places, by UID."""
    decided = plan(snapshot, now)
    return {
        item.job.metadata.uid: item.status
        for item in decided.items
        if isinstance(item, WriteStatus)
        and item.job.status.placement is None
        and item.status.placement is not None
    }


def _placed_before(
    snapshot: Snapshot, now: datetime, uid: str, placed: Mapping[str, GPUJobStatus]
) -> dict[str, GPUJobStatus]:
    """Returns the placed statuses that come before the job in the order of the cycle."""
    memory = SchedulerCache.of(snapshot)
    memory.update(snapshot, now)
    queues = memory.queues(snapshot)
    assumed = AssumedCapacity.of(memory.capacity, memory.mix)
    waiting = memory.waiting.in_order(snapshot.configuration, now)

    def memory_bytes(entry: Pending) -> int:
        requirements = memory.requirements(entry.job.metadata.uid)
        return (
            least_reservation_bytes(requirements, assumed, snapshot.configuration)
            if queues.by_name
            else 0
        )

    size = memory.capacity.size
    found: dict[str, GPUJobStatus] = {}
    for entry in QueueHeads(waiting, queues, size, memory_bytes):
        at = entry.job.metadata.uid
        if at == uid:
            break
        if at in placed:
            found[at] = placed[at]
            queues.add(entry.job, placed[at])
    return found
