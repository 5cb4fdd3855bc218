"""Refusals that hold for every job of an equivalence class."""

from dataclasses import dataclass

from gpujob_operator.decide.model.pending_reasons import PendingReason


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the jobs of a class wait, valid until a job is placed, GPUs are nominated or a job is
    preempted.
    """

    reason: PendingReason
    state: tuple[int, ...]
    # Includes short jobs, which may backfill nominated GPUs.
    by_backfill: bool
