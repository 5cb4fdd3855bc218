"""kubectl gpujob why --places: explains a placement by the operator's own rules."""

from typing import Any

from gpujob_api.codec import FieldError, encode
from gpujob_operator.cycle import find_job
from gpujob_operator.decide.explain.placement_explanation import (
    Candidate,
    PlacementExplanation,
    explain_placement,
)
from gpujob_operator.decide.explain.words import rows as rows
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.observations import Observation


def found(observation: Observation, name: str) -> PlacementExplanation:
    """Returns the explanation of NAMESPACE/NAME in this snapshot. Raises `UserError`."""
    try:
        job = find_job(observation.snapshot.jobs, name)
        return explain_placement(observation.snapshot, observation.now, job.metadata.uid)
    except FieldError as error:
        raise UserError(error.problem) from None


def headline(explanation: PlacementExplanation, observation: Observation) -> str:
    job = explanation.requirements.job.metadata
    how = "as this cycle decides it" if explanation.decided_here else "as if it were placed now"
    when = f"{observation.now:%Y-%m-%d %H:%M:%S} UTC"
    return f"{job.namespace}/{job.name}, {how}, from {observation.source} of {when}"


def as_json(explanation: PlacementExplanation) -> dict[str, Any]:
    """Returns the same for programs. Costs are in GPUs."""
    job = explanation.requirements.job.metadata
    return {
        "namespace": job.namespace,
        "name": job.name,
        "decidedHere": explanation.decided_here,
        "placedBefore": explanation.before,
        "chosen": None if explanation.chosen is None else _candidate(explanation.chosen),
        "best": [_candidate(one) for one in explanation.best],
        "lacks": {node: lack.text for node, lack in explanation.lacks.items()},
        "refusal": explanation.refusal,
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    return {
        "placement": encode(one.placement),
        "reservation": None if one.reservation is None else encode(one.reservation),
        "costs": [None if score is None else encode(score) for score in one.scores],
        "pricesPerGpuHour": list(one.prices),
        "interruptionsPerHour": list(one.interruptions_per_hour),
    }
