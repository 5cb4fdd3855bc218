"""How many writes may be in flight at the same time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LanesLeft:
    """How many more jobs of a namespace can be written at the same time."""

    namespace: str
    lanes: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the next cycle can write in addition to the writes in flight."""

    # Namespaces with writes in flight.
    left: tuple[LanesLeft, ...] = ()
    # How many more statuses may be written that only record what is already so. None: no limit.
    tells_left: int | None = None
