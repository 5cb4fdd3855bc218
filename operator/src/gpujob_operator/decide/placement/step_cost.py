"""The cost of a training step on the GPUs of one model, in money and energy, if measured.

    dollars of a step = price of all its GPUs per hour x seconds of a step / 3600

Seconds and joules come from earlier runs of the workload alone on its GPUs (its profile). Joules
are those of one GPU times the number of GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpujob_api.gpujob import Placement
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_operator.decide.capacity.cluster import NodeCapacity
from gpujob_operator.decide.measurement.reservation import profile_entry

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step. None: unknown, because a price or a run on this model is missing."""

    dollars: float | None = None
    joules: float | None = None


def step_cost(
    profile: GPUProfile | None, placement: Placement, nodes: Mapping[str, NodeCapacity]
) -> StepCost:
    """Returns the cost of this profile's workload on these GPUs, rounded to two digits.

    A shared GPU counts as a whole.
    """
    entry = profile_entry(profile, placement.gpu_model)
    if entry is None:
        return StepCost()
    known = [(nodes.get(worker.node), len(worker.gpus)) for worker in placement.workers]
    prices = [(None if node is None else node.price_with_losses, gpus) for node, gpus in known]
    seconds, joules = step_of(entry)
    dollars = None
    if seconds is not None and all(price is not None for price, _ in prices):
        per_hour = sum((price or 0.0) * gpus for price, gpus in prices)
        dollars = per_hour * seconds / _SECONDS_PER_HOUR
    gpus = sum(gpus for _, gpus in known)
    return StepCost(_rounded(dollars), _rounded(None if joules is None else joules * gpus))


def step_of(entry: ProfileEntry) -> tuple[float | None, float | None]:
    """Returns seconds and joules on one GPU, measured alone if possible. Otherwise seconds as
    measured.
    """
    seconds = entry.alone_step_seconds
    if seconds is None and entry.current is not None:
        seconds = entry.current.step_seconds
    return seconds, entry.alone_joules_per_step


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2g}")
