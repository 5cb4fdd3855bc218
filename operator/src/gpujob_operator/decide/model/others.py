"""How a job's status and events refer to other jobs.

Readers of a status may only have access to their own namespace. Jobs of other namespaces are
therefore counted and not named.
"""

from collections.abc import Iterable

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import format_count

NAMED_MAX = 3


def name_for(reader: GPUJob, other: GPUJob) -> str:
    """Returns how the reader's status refers to the other job."""
    return other.metadata.key if _may_be_named(reader, other) else "a job of another namespace"


def names_for(reader: GPUJob, others: Iterable[GPUJob]) -> str:
    """Returns the same for several jobs: team/a, team/b and 2 jobs of other namespaces."""
    jobs = list(others)
    names = sorted(job.metadata.key for job in jobs if _may_be_named(reader, job))
    foreign, more = len(jobs) - len(names), max(len(names) - NAMED_MAX, 0)
    listed = ", ".join(names[:NAMED_MAX])
    counted = [f"{more} more"] if more else []
    if foreign:
        counted.append(f"{format_count(foreign, 'job')} of other namespaces")
    return " and ".join([listed, *counted] if listed else counted)


def _may_be_named(reader: GPUJob, other: GPUJob) -> bool:
    return reader.metadata.namespace == other.metadata.namespace
