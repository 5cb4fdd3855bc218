"""kubectl gpujob checkpoints: what an interruption would preserve of a job."""

import argparse

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.quantities import format_count, format_memory
from kubectl_gpujob import text
from kubectl_gpujob.errors import EXIT_DONE
from kubectl_gpujob.grammar import World, add_output, add_target

Row = tuple[str, str]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help="name of the job")
    add_target(parser)
    add_output(parser, "table", "json")


def run(options: argparse.Namespace, world: World) -> int:
    job = world.cluster(options).job(options.name)
    if options.output == "json":
        world.screen.json(as_json(job))
    else:
        world.screen.rows(job.metadata.key, rows(job))
    return EXIT_DONE


def rows(job: GPUJob) -> list[Row]:
    spec, status = job.spec.checkpoint, job.status
    claim = spec.volume_claim_name
    # The configuration of the operator decides whether it creates a claim, and is not known here.
    own = f"claim {job.metadata.name}-checkpoints if the operator creates claims"
    kept = f"claim {claim}" if claim else f"{own}, else lost with the pod"
    found: list[Row] = [("Kept on", kept)]
    saved = status.checkpoint
    if spec.path is not None:
        found.append(("Saved", f"by the script: {spec.path}"))
    else:
        every = "chosen by cost" if spec.interval == "Auto" else f"every {spec.interval}"
        found.append(("Saved", f"{every}; the newest {spec.keep} are kept"))
    if saved is None and spec.path is None:
        found.append(("Newest", "none yet"))
    if saved is not None:
        size = f", {format_memory(saved.bytes)}" if saved.bytes else ""
        took = f", written in {text.duration(saved.write_seconds)}" if saved.write_seconds else ""
        found.append(("Newest", f"step {saved.step}{size}{took}"))
        found += _behind(job, saved.step)
    if status.resumed_from_step is not None:
        step = status.resumed_from_step
        found.append(("Resumed", f"after step {step}" if step else "not: from the beginning"))
    found.append(("Protection", text.protection(job) or "not known yet"))
    return found


def _behind(job: GPUJob, step: int) -> list[Row]:
    """Returns the work since the newest checkpoint, which a crash would lose, or which the next
    attempt repeats.
    """
    measured = job.status.measurement
    if measured is None or job.finished or measured.step <= step:
        return []
    steps = measured.step - step
    count = format_count(steps, "call" if measured.counts_calls else "step")
    seconds = steps * measured.current.step_seconds if measured.current is not None else None
    about = f", about {text.duration(seconds)}" if seconds is not None else ""
    by_stop = "" if text.unprotected(job) else ", saved by a stop"
    ends = f"lost by a crash{by_stop}"
    if job.status.phase is JobPhase.PENDING:
        ends = "made again by the next attempt"
    return [("Since then", f"{count}{about}: {ends}")]


def as_json(job: GPUJob) -> dict[str, object]:
    status = job.status
    found: dict[str, object] = {
        "namespace": job.metadata.namespace,
        "name": job.metadata.name,
        "volumeClaimName": job.spec.checkpoint.volume_claim_name,
        "interval": job.spec.checkpoint.interval,
        "keep": job.spec.checkpoint.keep,
    }
    if status.checkpoint is not None:
        found["newest"] = encode(status.checkpoint)
    if status.protection is not None:
        found["protection"] = status.protection.value
    if status.resumed_from_step is not None:
        found["resumedFromStep"] = status.resumed_from_step
    return found
