"""kubectl gpujob cancel, suspend and resume: changes of existing jobs."""

import argparse
from collections.abc import Mapping, Sequence

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.manifest import GPUJOB
from kubectl_gpujob import text
from kubectl_gpujob.cluster import Cluster, jobs_path
from kubectl_gpujob.errors import EXIT_DONE, EXIT_FAILED, UsageError, UserError
from kubectl_gpujob.grammar import World, add_selector, add_target

_DONE: Mapping[str, str] = {
    "cancel": "is being deleted",
    "suspend": "is being suspended and gives its GPUs back",
    "resume": "waits for its GPUs again",
}
_ALREADY: Mapping[str, str] = {"suspend": "is already suspended", "resume": "is not suspended"}
_PAST: Mapping[str, str] = {"suspend": "suspended", "resume": "resumed"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="JOB", nargs="*", help="names of jobs")
    parser.add_argument("--all", action="store_true", help="all jobs of the namespace")
    parser.add_argument("--failed", action="store_true", help="with --all: only failed jobs")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_selector(parser)
    add_target(parser)


def run(options: argparse.Namespace, world: World) -> int:
    cluster, verb = world.cluster(options), str(options.verb)
    names = _names(options, cluster, verb)
    if not names:
        world.screen.note(f"no gpujobs to {verb} in namespace {cluster.namespace}")
        return EXIT_DONE
    if verb == "cancel" and len(names) > 1 and not options.yes and not _agrees(names, world):
        raise UserError("nothing was cancelled; --yes answers the question")
    failed = 0
    for name in names:
        try:
            is_new = change(cluster, verb, name)
            # What a stop loses is told before anybody relies on it.
            lost = text.unprotected(cluster.job(name)) if verb == "suspend" else ""
        except UserError as error:
            # The others are changed all the same.
            world.screen.note(f"error: {error}")
            failed += 1
        else:
            world.screen.line(f"gpujob/{name} {(_DONE if is_new else _ALREADY)[verb]}")
            if lost:
                world.screen.note(f"note: {name} loses work: {lost}")
    return EXIT_FAILED if failed else EXIT_DONE


def _names(options: argparse.Namespace, cluster: Cluster, verb: str) -> Sequence[str]:
    chosen = options.all or bool(options.selector)
    if bool(options.names) == chosen:
        raise UsageError(f"{verb} needs names of jobs, or --all, or -l SELECTOR")
    if options.failed and not options.all:
        raise UsageError("--failed is only valid with --all")
    if options.names:
        return list(dict.fromkeys(options.names))
    jobs = cluster.jobs(selector=options.selector)
    return [job.metadata.name for job in jobs if _applies(job, verb, failed=options.failed)]


def _applies(job: GPUJob, verb: str, *, failed: bool) -> bool:
    if failed and job.status.phase is not JobPhase.FAILED:
        return False
    match verb:
        case "suspend":
            return not job.finished and not job.spec.suspend
        case "resume":
            return not job.finished and job.spec.suspend
        case _:
            return True


def _agrees(names: Sequence[str], world: World) -> bool:
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    answer = world.ask(f"Delete {len(names)} jobs: {shown}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def change(cluster: Cluster, verb: str, name: str) -> bool:
    """Cancels, suspends or resumes one job. Returns whether that changes it. Raises `UserError`."""
    if verb == "cancel":
        path = jobs_path(cluster.namespace, name)
        cluster.delete(f"gpujob {name} in namespace {cluster.namespace}", path)
        return True
    job = cluster.job(name)
    if job.finished:
        raise UserError(f"gpujob {name} has {job.status.phase.value}: it cannot be {_PAST[verb]}")
    cluster.patch(GPUJOB.crd_name, name, {"spec": {"suspend": verb == "suspend"}})
    return job.spec.suspend is not (verb == "suspend")
