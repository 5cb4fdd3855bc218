"""When a pending job is expected to start."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StartRange:
    """The range of the expected start, and the first one, which the start is compared with."""

    earliest: datetime | None = None
    # None: it is not known that the job starts.
    latest: datetime | None = None
    # Readers ignore a range that is five minutes old.
    computed_at: datetime | None = None
    first_earliest: datetime | None = None
    first_latest: datetime | None = None
    # Whether the job was first placed within the first range. None: no such range, or not placed.
    first_held: bool | None = None
