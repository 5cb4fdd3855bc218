"""kubectl gpujob timeline: what happened to a job, in order."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import format_duration
from kubectl_gpujob.errors import EXIT_DONE
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.screen import list_of
from kubectl_gpujob.services import job_named

_COLUMNS = ("TIME", "AFTER", "WHAT", "MESSAGE")
# The order of what happened within one second.
_FIRST, _LAST = ("Created", "Placed", "Started"), ("Succeeded", "Failed")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help="name of the job")
    add_target(parser)
    add_output(parser, "table", "json")


def run(options: argparse.Namespace, world: World) -> int:
    cluster, screen = world.cluster(options), world.screen
    job = job_named(cluster, options.name)
    events = [_event(one) for one in cluster.events(job)]
    known = [one for one in events if one is not None]
    found = sorted([*_unrecorded(job, known), *known], key=_order)
    if options.output == "json":
        items = [
            {"at": at.isoformat().replace("+00:00", "Z"), "what": what, "message": message}
            for at, what, message in found
        ]
        screen.json(list_of("JobTimeline", items))
        return EXIT_DONE
    start = found[0][0]
    rows = [
        {
            "TIME": f"{at:%H:%M:%S}",
            "AFTER": format_duration((at - start).total_seconds()),
            "WHAT": what,
            "MESSAGE": message,
        }
        for at, what, message in found
    ]
    screen.line(f"{job.metadata.key}, times of {start:%Y-%m-%d} UTC")
    screen.table(rows, _COLUMNS)
    if not events:
        screen.note("its events are gone: an API server keeps them for an hour by default")
    return EXIT_DONE


def _order(moment: tuple[datetime, str, str]) -> tuple[datetime, int, datetime, str]:
    """Most moments have whole seconds, in which a job may be placed, start and end."""
    at, what, message = moment
    rank = _FIRST.index(what) if what in _FIRST else len(_FIRST) + (what in _LAST)
    return at.replace(microsecond=0), rank, at, message


def _of_status(job: GPUJob) -> list[tuple[datetime, str, str]]:
    """Returns the moments that the object itself keeps, however old they are."""
    status = job.status
    moments = (
        (job.metadata.creation_timestamp, "Created", ""),
        (status.started_at, "Started", "the first worker ran"),
        (status.finished_at, status.phase.value, status.failure.message if status.failure else ""),
    )
    return [(at, what, message) for at, what, message in moments if at is not None]


def _unrecorded(
    job: GPUJob, events: Sequence[tuple[datetime, str, str]]
) -> list[tuple[datetime, str, str]]:
    """Returns those of the status whose event is gone. The event of an end has its message."""
    ends = {what for _, what, _ in events if what in _LAST}
    return [one for one in _of_status(job) if one[1] not in ends]


def _event(manifest: Mapping[str, Any]) -> tuple[datetime, str, str] | None:
    moment = manifest.get("eventTime") or manifest.get("lastTimestamp")
    try:
        at = datetime.fromisoformat(str(moment))
    except ValueError:
        return None
    count = int((manifest.get("series") or {}).get("count") or manifest.get("count") or 1)
    times = f" ({count} times)" if count > 1 else ""
    message = str(manifest.get("message") or manifest.get("note") or "")
    return at, str(manifest.get("reason") or ""), f"{message}{times}"
