"""What a simulation tells of a seed: broken promises, and what became of each job."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    at: float
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at:.2f} s: {self.message}"


@dataclass(slots=True)
class Story:
    """What became of a job, and when."""

    submitted_at: float
    first_pod_at: float | None = None
    ended_at: float | None = None
    end: str = ""
