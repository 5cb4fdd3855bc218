"""How many writes may be under way at the same time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LanesLeft:
    """How many more jobs of a namespace can be written at the same time."""

    namespace: str
    lanes: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the next cycle can write, beside what is being written."""

    # Of namespaces with writes under way.
    left: tuple[LanesLeft, ...] = ()
    # How many more statuses that only tell what is so already; None: as many as are decided.
    tells_left: int | None = None
