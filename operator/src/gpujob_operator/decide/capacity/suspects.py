"""GPUs on which programs of several jobs failed, although no single error proves a fault.

An error of a program (XID 13 or 31, for example) is nearly always the program's own. The GPU is
suspect only if programs of different jobs meet such errors there and nowhere else. Errors that
follow a namespace from GPU to GPU belong to that namespace, so that its faulty programs cannot
close GPUs to all.
"""

from collections.abc import Iterable

from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.snapshot import ProgramFault

SUSPECT_JOBS_MIN = 2


def suspects(faults: Iterable[ProgramFault]) -> dict[Place, str]:
    """Returns why nothing new is placed on suspect GPUs, by node and GPU.

    A suspicion ends if the agent no longer reports the errors (an hour after them, or once the GPU
    was reset), or if they occur on another GPU as well.
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
