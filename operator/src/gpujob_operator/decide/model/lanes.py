"""How many writes may be under way at the same time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LanesLeft:
    """How many more jobs of a namespace can be written at the same time."""

    namespace: str
    lanes: int
