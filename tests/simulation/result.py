"""How one simulation went."""

from dataclasses import dataclass, field

from tests.simulation.findings import Story, Violation


@dataclass(slots=True)
class Result:
    """How a seed ended.

    `ends` is the final phase (or `deleted`) by namespace/name of the job, `lists` how often an
    operator listed all objects of a kind, `stories` what became of each job, and when.
    """

    seed: int
    violations: list[Violation] = field(default_factory=list[Violation])
    ends: dict[str, str] = field(default_factory=dict[str, str])
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    writes: int = 0
    cycles: int = 0
    revisions: int = 0
    seconds: float = 0.0
    lists: int = 0
    # How often the writes of each object were refused.
    refused: dict[str, int] = field(default_factory=dict[str, int])
    # How many requests of services ended how.
    requests: dict[str, int] = field(default_factory=dict[str, int])
    stories: dict[str, Story] = field(default_factory=dict[str, Story])
