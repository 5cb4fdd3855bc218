"""How many replicas the load needs.

A replica's load is the part of the time in which it executes batches. Under the Deadline policy
that is the least time in which the requests can be answered, so a busy replica has no head-room
that a larger batch would find.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpujob_api.gpuservice import Replicas
from gpujob_api.serving import ServingReport

# Queueing delays grow without bound near 1. At 0.6 a batch waits for 1.5 times its own duration on
# average (M/M/1: rho / (1 - rho)).
BUSY_MAX = 0.6
# A shorter pause in the load removes no replica. After it, as many are kept as were needed at
# any time of it, as the HorizontalPodAutoscaler does in its stabilization window.
FEWER_AFTER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Scale:
    """The wanted number, since when fewer would do, and the most that were needed since then."""

    wanted: int
    fewer_since: datetime | None = None
    fewer: int = 0


def scaled(
    replicas: Replicas,
    before: int,
    reports: Sequence[ServingReport],
    refused_more: bool,
    fewer_since: datetime | None,
    fewer: int,
    now: datetime,
    *,
    some_silent: bool = False,
) -> Scale:
    """Returns the wanted number of replicas. More come at once, fewer after a pause.

    `fewer_since` and `fewer` are those of the last answer.
    `reports` are those of the replicas that answer. `refused_more` is whether requests were refused
    since the last round, and `some_silent` whether the load of a replica that answers is not known.
    """
    # Whether there is none at all is decided by requests, not by the load of replicas.
    least = max(1, replicas.minimum)
    before = max(least, min(before, replicas.most))
    if not reports:
        return Scale(before)
    load = sum(report.busy_percent for report in reports) / 100
    needed = math.ceil(load / BUSY_MAX - 1e-9)
    if refused_more:
        needed = max(needed, len(reports) + 1)
    needed = max(least, min(needed, replicas.most))
    if needed >= before:
        return Scale(needed)
    if some_silent:
        return Scale(before)
    if fewer_since is None:
        return Scale(before, now, needed)
    fewer = max(fewer, needed)
    if now - fewer_since < FEWER_AFTER:
        return Scale(before, fewer_since, fewer)
    # The minimum or the maximum may have been edited since.
    fewer = min(fewer, before)
    return Scale(fewer) if fewer == needed else Scale(fewer, now, needed)
