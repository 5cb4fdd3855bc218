"""Pod manifests to what decisions need: who could be a worker in full, everybody else's requests.

Who could be one has the name of one; whether it is, `decide.workers` tells.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpujob_api.codec import FieldError, parse_time
from gpujob_api.gpujob import ATTEMPT_MAX, WORKER_CONTAINER, WORKERS_MAX
from gpujob_api.meta import ANNOTATION_GPUS
from gpujob_api.report import Report
from gpujob_operator.decide.snapshot import PodPhase, PodView
from gpujob_operator.decide.workers import controller_uid
from gpujob_operator.read.requests import PodRequests, pod_requests

_TEXT_CHARACTERS_MAX = 1024
_GPUS_MAX = 16
# Waiting reasons that are part of every normal start.
_ORDINARY_WAITING = frozenset({"ContainerCreating", "PodInitializing"})
# <job>-<attempt>-<rank>, the numbers as we write them.
_NAME = re.compile(r"^.+-(0|[1-9][0-9]{0,4})-(0|[1-9][0-9]{0,3})$")
_PHASES = {phase.value: phase for phase in PodPhase}


@dataclass(frozen=True, slots=True)
class CachedPod:
    """A pod as the cache keeps it: `view` for one that has the name of a worker."""

    uid: str
    node: str | None
    finished: bool
    requests: PodRequests
    view: PodView | None


def cached_pod(manifest: Mapping[str, Any]) -> CachedPod:
    """Reads any pod; one that is not called like a worker is unmanaged, whatever it claims."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    phase = (manifest.get("status") or {}).get("phase")
    return CachedPod(
        uid=metadata["uid"],
        node=spec.get("nodeName") or None,
        finished=phase in ("Succeeded", "Failed"),
        requests=pod_requests(spec),
        view=_worker_or_none(manifest),
    )


def _worker_or_none(manifest: Mapping[str, Any]) -> PodView | None:
    try:
        return pod_view(manifest)
    except FieldError:
        return None


def pod_view(manifest: Mapping[str, Any]) -> PodView:
    """Reads a pod that could be a worker. Raises `FieldError` when its name is not one's."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    status = manifest.get("status") or {}
    attempt, rank = _attempt_and_rank(metadata["name"])
    state = _worker_state(status)
    ended = state.get("terminated") or {}
    text = str(ended.get("message") or "")
    termination = _termination_report(text)
    reason, message = _reason(status, state)
    return PodView(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata["uid"],
        job_uid=controller_uid(metadata),
        attempt=attempt,
        rank=rank,
        phase=_PHASES.get(str(status.get("phase") or "Pending"), PodPhase.UNKNOWN),
        node=spec.get("nodeName") or None,
        gpus=_gpus(metadata.get("annotations") or {}),
        exit_code=_exit_code(ended),
        termination=termination,
        termination_text="" if termination else text[-_TEXT_CHARACTERS_MAX:],
        reason=reason,
        message=message[:_TEXT_CHARACTERS_MAX],
        created_at=_time(metadata.get("creationTimestamp")),
        started_at=_time((state.get("running") or ended).get("startedAt")),
        finished_at=_time(ended.get("finishedAt")),
        deletion_at=_time(metadata.get("deletionTimestamp")),
        grace_seconds=_grace_seconds(spec),
    )


def _attempt_and_rank(pod_name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(pod_name)
    if match is None or int(match[1]) > ATTEMPT_MAX or int(match[2]) >= WORKERS_MAX:
        raise FieldError("metadata.name", f"is not <job>-<attempt>-<rank>; got {pod_name!r}")
    return int(match[1]), int(match[2])


def _grace_seconds(spec: Mapping[str, Any]) -> int | None:
    seconds = spec.get("terminationGracePeriodSeconds")
    return seconds if isinstance(seconds, int) else None


def _gpus(annotations: Mapping[str, str]) -> tuple[str, ...]:
    text = annotations.get(ANNOTATION_GPUS, "")
    return tuple(uuid for uuid in text.split(",") if uuid)[:_GPUS_MAX]


def _worker_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == WORKER_CONTAINER:
            return container.get("state") or {}
    return {}


def _exit_code(ended: Mapping[str, Any]) -> int | None:
    code = ended.get("exitCode")
    return code if isinstance(code, int) else None


def _termination_report(text: str) -> Report | None:
    """Our own last report, or None: any program may write any text there."""
    if not text.startswith("{"):
        return None
    try:
        return Report.from_text(text)
    except (FieldError, json.JSONDecodeError, RecursionError):
        return None


def _reason(status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    """The most telling of Kubernetes' words on why the pod is as it is."""
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message") or "")
    waiting = state.get("waiting") or {}
    if waiting.get("reason") and waiting["reason"] not in _ORDINARY_WAITING:
        return str(waiting["reason"]), str(waiting.get("message") or "")
    for container in status.get("initContainerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _ORDINARY_WAITING:
            return str(waiting["reason"]), str(waiting.get("message") or "")
    ended = state.get("terminated") or {}
    if ended.get("reason") not in (None, "Completed"):
        return str(ended["reason"]), ""
    return _unschedulable(status)


def _unschedulable(status: Mapping[str, Any]) -> tuple[str, str]:
    for condition in status.get("conditions") or ():
        refused = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if refused or condition.get("type") == "DisruptionTarget":
            return str(condition.get("reason") or ""), str(condition.get("message") or "")
    return "", ""


def _time(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None
