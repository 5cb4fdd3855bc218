"""kubectl gpujob wait: blocks until a job runs, reaches a step or ends."""

import argparse
import re

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.quantities import format_duration
from kubectl_gpujob import text
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import (
    EXIT_DONE,
    EXIT_JOB_FAILED,
    EXIT_TIMED_OUT,
    NotFoundError,
    UsageError,
    UserError,
)
from kubectl_gpujob.grammar import World, add_target
from kubectl_gpujob.verbs.list import progress, status

POLL_SECONDS = 2.0
_STEP = re.compile(r"step=([0-9]{1,15})")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help="name of the job")
    parser.add_argument(
        "--for",
        dest="event",
        default="finished",
        metavar="EVENT",
        help="finished (default), succeeded, running or step=N",
    )
    parser.add_argument("--timeout", default="30d", help="90s, 30m, 24h, 7d (default: 30d)")
    add_target(parser)


def run(options: argparse.Namespace, world: World) -> int:
    seconds = text.seconds_of(options.timeout, "--timeout")
    return wait(world.cluster(options), options.name, options.event, seconds, world)


def wait(cluster: Cluster, name: str, event: str, seconds: float, world: World) -> int:
    """Returns the exit code: done, the job failed first, or timed out."""
    step = _step_of(event)
    start, shown = world.now(), ""
    while True:
        try:
            job = cluster.job(name)
        except NotFoundError:
            if not shown:
                raise
            raise UserError(f"gpujob {name} was deleted before it was {event}") from None
        line = f"{status(job)} {progress(job)}".removesuffix(" -")
        if line != shown:
            world.screen.note(f"gpujob/{name}: {line}")
            shown = line
        if _has_happened(job, event, step):
            return EXIT_DONE
        if job.finished:
            return EXIT_JOB_FAILED if job.status.phase is JobPhase.FAILED else EXIT_DONE
        waited_seconds = (world.now() - start).total_seconds()
        if waited_seconds >= seconds:
            limit = format_duration(seconds)
            world.screen.note(f"gpujob/{name} is not {event} within {limit}")
            return EXIT_TIMED_OUT
        world.sleep(min(POLL_SECONDS, seconds - waited_seconds))


def _step_of(event: str) -> int | None:
    if event in ("finished", "succeeded", "running"):
        return None
    match = _STEP.fullmatch(event)
    if match is None:
        raise UsageError(f"--for: must be finished, succeeded, running or step=N; got {event!r}")
    return int(match[1])


def _has_happened(job: GPUJob, event: str, step: int | None) -> bool:
    phase, measured = job.status.phase, job.status.measurement
    if step is not None:
        return measured is not None and measured.step >= step
    if event == "running":
        return phase is JobPhase.RUNNING
    return phase is JobPhase.SUCCEEDED
