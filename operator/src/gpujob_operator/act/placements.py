"""Placements that the pods of jobs of one worker record: what the cache is to know of them."""

from typing import Protocol

from gpujob_api.gpujob import GPUJob, GPUJobStatus


class Placements(Protocol):
    """Jobs by UID; see `observe.placement_records`."""

    def place(self, job: GPUJob, status: GPUJobStatus) -> None:
        """The pod that records this status of the job is about to be created."""
        ...

    def is_placed(self, uid: str) -> bool:
        """Whether the record still counts: not where this process lost the lead meanwhile."""
        ...

    def withdraw(self, uid: str, *, in_doubt: bool) -> None:
        """No status was written, and no pod was created; `in_doubt`: one may be."""
        ...
