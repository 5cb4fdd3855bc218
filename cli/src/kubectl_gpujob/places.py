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
from kubectl_gpujob.simulate import Picture


def found(picture: Picture, name: str) -> PlacementExplanation:
    """The explanation of NAMESPACE/NAME in this snapshot. Raises `UserError`."""
    try:
        job = find_job(picture.snapshot.jobs, name)
        return explain_placement(picture.snapshot, picture.now, job.metadata.uid)
    except FieldError as error:
        raise UserError(error.problem) from None


def headline(told: PlacementExplanation, picture: Picture) -> str:
    job = told.requirements.job.metadata
    how = "as this cycle decides it" if told.decided_here else "as if it were placed now"
    when = f"{picture.now:%Y-%m-%d %H:%M:%S} UTC"
    return f"{job.namespace}/{job.name}, {how}, from {picture.source} of {when}"


def as_json(told: PlacementExplanation) -> dict[str, Any]:
    """The same for programs. Costs are in GPUs."""
    job = told.requirements.job.metadata
    return {
        "namespace": job.namespace,
        "name": job.name,
        "decidedHere": told.decided_here,
        "placedBefore": told.before,
        "chosen": None if told.chosen is None else _candidate(told.chosen),
        "best": [_candidate(one) for one in told.best],
        "lacks": dict(told.lacks),
        "refusal": told.refusal,
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    return {
        "placement": encode(one.placement),
        "reservation": None if one.reservation is None else encode(one.reservation),
        "costs": [None if score is None else encode(score) for score in one.scores],
        "pricesPerGpuHour": list(one.prices),
        "interruptionsPerHour": list(one.interruptions_per_hour),
    }
