"""GPUs that the programs of more than one job failed on, although no single error proves anything.

An error of a program (XID 13 or 31, say) is nearly always the program's own. The GPU is in question
only when programs of different jobs meet such errors there, and nowhere else. Errors that follow a
namespace from GPU to GPU are that namespace's, so that nobody's bad programs close GPUs to all.
"""

from collections.abc import Iterable

from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.snapshot import ProgramFault

SUSPECT_JOBS_MIN = 2


def suspects(faults: Iterable[ProgramFault]) -> dict[Place, str]:
    """By node and GPU, why nothing new is placed there. It ends when the agent no longer tells of
    the errors (an hour after them, or once the GPU was reset), or when they are seen on another GPU
    as well.
    """
    faults = tuple(faults)
    gpus: dict[str, set[Place]] = {}
    for fault in faults:
        gpus.setdefault(fault.namespace, set()).add((fault.node, fault.gpu))
    believed = [fault for fault in faults if len(gpus[fault.namespace]) == 1]
    jobs: dict[Place, set[str]] = {}
    xids: dict[Place, set[int]] = {}
    for fault in believed:
        place = fault.node, fault.gpu
        jobs.setdefault(place, set()).add(fault.job_uid)
        xids.setdefault(place, set()).add(fault.xid)
    return {
        place: f"{len(uids)} jobs within an hour, XID {', '.join(map(str, sorted(xids[place])))}"
        for place, uids in sorted(jobs.items())
        if len(uids) >= SUSPECT_JOBS_MIN
    }
