"""What was recorded of the jobs that a problem names, a line a revision."""

import re
from collections.abc import Iterable
from typing import Any

from tests.harness.history import Revision
from tests.harness.worker_ends import WorkerEnds

JOB_NAME = re.compile(r"\bjob\d+\b")
JOBS_TOLD_MAX = 3
DISRUPTED = "DisruptionTarget"


def tell(problem: str, revisions: Iterable[Revision], cuts: Iterable[int] = ()) -> str:
    """The lives of the first jobs that the problem names, and of their pods, who led, and which
    nodes changed. `cuts`: the versions at which the API server went away or came back.
    """
    names = list(dict.fromkeys(JOB_NAME.findall(problem)))[:JOBS_TOLD_MAX]
    if not names:
        return ""
    leads, lines, to_come = WorkerEnds(), list[str](), sorted(cuts)
    nodes: dict[str, str] = {}
    for one in revisions:
        while to_come and to_come[0] < one.version:
            lines.append(f"  {to_come.pop(0)} the API server goes away or is there again")
        if one.kind == "Lease":
            if leads.fold_lease(one.object):
                holder = one.object["spec"]["holderIdentity"]
                lines.append(f"  {one.version} {holder} takes the lead")
        elif one.kind == "Node":
            name, now = one.object["metadata"]["name"], _of_node(one)
            if nodes.get(name) != now:
                nodes[name] = now
                lines.append(f"  {one.version} {one.type} {name}: {now}")
        elif _job_of(one) in names:
            lines.append(_line(one))
    return "\n".join(lines)


def _job_of(revision: Revision) -> str:
    metadata = revision.object["metadata"]
    if revision.kind == "GPUJob":
        return metadata["name"]
    return (metadata.get("labels") or {}).get("gpujob.dev/job", "")


def _line(revision: Revision) -> str:
    metadata, status = revision.object["metadata"], revision.object.get("status") or {}
    said = _of_job(revision.object) if revision.kind == "GPUJob" else _of_pod(status)
    going = " deleted" if "deletionTimestamp" in metadata else ""
    return f"  {revision.version} {revision.type} {metadata['name']}{going}: {said}"


def _of_job(job: dict[str, Any]) -> str:
    status = job.get("status") or {}
    suspended = " suspended" if job["spec"].get("suspend") else ""
    attempt, stop = status.get("attempt", 0), status.get("stop")
    conditions = [
        f"{one['type']}={one['status']} {one['reason']}" for one in status.get("conditions", ())
    ]
    conditions += [
        one["message"]
        for one in status.get("conditions", ())
        if (one["type"], one["status"]) == ("Running", "False")
    ]
    return f"{status.get('phase')}{suspended}, attempt {attempt}, stop {stop}, {conditions}"


def _of_pod(status: dict[str, Any]) -> str:
    states = [one.get("state") for one in status.get("containerStatuses", ())]
    signs = [one["reason"] for one in status.get("conditions", ()) if one["type"] == DISRUPTED]
    return " ".join([f"{status.get('phase')} {states}", *signs])


def _of_node(revision: Revision) -> str:
    spec, status = revision.object.get("spec") or {}, revision.object.get("status") or {}
    ready = [one["status"] for one in status.get("conditions", ()) if one["type"] == "Ready"]
    taints = [taint["key"] for taint in spec.get("taints", ())]
    cordoned = " unschedulable" if spec.get("unschedulable") else ""
    return f"ready {ready}{cordoned}, taints {taints}"
