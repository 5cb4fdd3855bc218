"""What the manifest of a worker pod says of it."""

from collections.abc import Mapping
from typing import Any

FINAL = ("Succeeded", "Failed")


def job_uid_of(pod: Mapping[str, Any]) -> str:
    return (pod["metadata"].get("labels") or {}).get("gpujob.dev/job-uid", "")


def attempt_of(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["labels"]["gpujob.dev/attempt"])


def is_live(pod: Mapping[str, Any]) -> bool:
    """Its worker may still be there; containers beside it do not count."""
    phase = (pod.get("status") or {}).get("phase")
    return phase not in FINAL and exit_code_of(pod) is None


def is_asked_to_end(pod: Mapping[str, Any]) -> bool:
    """Whether somebody ends it from outside, as it shows."""
    status = pod.get("status") or {}
    told = [one for one in status.get("conditions") or () if one["type"] == "DisruptionTarget"]
    asked = any(one["status"] == "True" for one in told) or bool(status.get("reason"))
    return asked or "deletionTimestamp" in pod["metadata"]


def exit_code_of(pod: Mapping[str, Any]) -> int | None:
    """The worker's; that of a pod that says no more than its phase follows from it."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        if container["name"] == "worker":
            return (container.get("state") or {}).get("terminated", {}).get("exitCode")
    return {"Succeeded": 0, "Failed": 1}.get(str(status.get("phase")))
