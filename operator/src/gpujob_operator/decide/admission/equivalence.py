"""Refusals that hold for all jobs of one class."""

from dataclasses import dataclass

from gpujob_operator.decide.model.pending_reasons import PendingReason


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the jobs of a kind wait, as long as nothing else is placed, kept or interrupted."""

    reason: PendingReason
    state: tuple[int, ...]
    # Short jobs too, which may use GPUs that are kept for others.
    by_backfill: bool
