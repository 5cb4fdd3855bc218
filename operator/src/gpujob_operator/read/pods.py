"""Reads Pod manifests: possible workers in full, and the requests of all other pods.

A possible worker has a worker's name. `decide.model.workers` decides whether it is one.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from gpujob_api.bounds import INT32_MAX
from gpujob_api.codec import FieldError, decode, parse_json
from gpujob_api.gpujob import ATTEMPT_MAX, WORKER_CONTAINER, WORKERS_MAX
from gpujob_api.manifest import GPUSERVICE
from gpujob_api.meta import (
    ANNOTATION_GPUS,
    ANNOTATION_PLACEMENT,
    LABEL_GATE,
    LABEL_REVISION,
    LABEL_SERVICE_UID,
)
from gpujob_api.report import Report
from gpujob_operator.decide.model.gates import GatePod
from gpujob_operator.decide.model.placement_record import PlacementRecord
from gpujob_operator.decide.model.pod_requests import (
    WHOLE_NODE,
    PodRequests,
    requests_while_resized,
)
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.workers import controller_uid
from gpujob_operator.read.shapes import (
    identity,
    mapping,
    mappings,
    moment,
    readable_metadata,
    text,
)

_TEXT_CHARACTERS_MAX = 1024
# As much of a log as a kubelet gives if a program leaves no termination message.
_LOG_CHARACTERS_MAX = 2048
_GPUS_MAX = 16
_ADDRESSES_MAX = 2
_RECORDS_MAX, _RECORD_CHARACTERS_MAX = 4096, 8192
# Waiting reasons of every normal start.
_ORDINARY_WAITING = frozenset({"ContainerCreating", "PodInitializing"})
# <job>-<attempt>-<rank>, with numbers in the operator's own format.
_NAME = re.compile(r"^.+-(0|[1-9][0-9]{0,4})-(0|[1-9][0-9]{0,3})$")
_PHASES = {phase.value: phase for phase in PodPhase}


@dataclass(frozen=True, slots=True)
class CachedPod:
    """A pod as the cache stores it. `view` is set if it has a worker's name."""

    uid: str
    node: str | None
    finished: bool
    requests: PodRequests
    view: PodView | None
    # Set if the pod is a service's gate.
    gate: GatePod | None = None
    # A pod of negative priority, such as a placeholder for an autoscaler. kube-scheduler evicts it
    # for a worker, whose priority is 0 unless its template names a class.
    gives_way: bool = False

    @property
    def takes_room(self) -> bool:
        """Whether its node has less room for workers."""
        return self.node is not None and not self.finished and not self.gives_way


def cached_pod(manifest: Mapping[str, Any]) -> CachedPod:
    """Reads any pod. A pod without a worker's name is unmanaged, whatever its metadata claims.

    Parts of a wrong type count as absent. Raises `FieldError` for a pod without a UID or a name.
    """
    metadata, spec = readable_metadata(manifest), mapping(manifest.get("spec"))
    view, gate = _worker_or_none(manifest), _gate_or_none(manifest, metadata)
    return CachedPod(
        uid=metadata["uid"],
        node=text(spec.get("nodeName")) or None,
        finished=_finished(manifest),
        requests=requests_while_resized(spec, mapping(manifest.get("status"))),
        view=view,
        gate=gate,
        gives_way=view is None and gate is None and _has_negative_priority(spec),
    )


def opaque_pod(manifest: Mapping[str, Any], before: CachedPod | None) -> CachedPod:
    """Returns a pod that cannot be read.

    It counts as using its whole node until it is proven finished, and stays the worker that it was.
    Raises `FieldError` for a pod without a UID or a name.
    """
    node = text(mapping(manifest.get("spec")).get("nodeName")) or None
    return CachedPod(
        uid=identity(manifest).uid,
        node=node if before is None else node or before.node,
        finished=_finished(manifest),
        requests=WHOLE_NODE if before is None else before.requests,
        view=None if before is None else before.view,
        gate=None if before is None else before.gate,
        gives_way=before is not None and before.gives_way,
    )


def _gate_or_none(manifest: Mapping[str, Any], metadata: Mapping[str, Any]) -> GatePod | None:
    """Reads a service's gate. Returns None for every other pod."""
    labels = metadata["labels"]
    if labels.get(LABEL_GATE) != "true":
        return None
    owner = controller_uid(metadata, GPUSERVICE.kind)
    if not owner or labels.get(LABEL_SERVICE_UID) != owner:
        return None
    status = mapping(manifest.get("status"))
    states = [mapping(one.get("state")) for one in mappings(status.get("containerStatuses"))]
    reason, message = _reason(status, states[0] if states else {})
    return GatePod(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        service_uid=owner,
        revision=labels.get(LABEL_REVISION, ""),
        ready=_condition(status, "Ready").get("status") == "True",
        leaving=moment(metadata.get("deletionTimestamp")) is not None,
        finished=_finished(manifest),
        addresses=_addresses(status),
        reason=reason[:_TEXT_CHARACTERS_MAX],
        message=message[:_TEXT_CHARACTERS_MAX],
    )


def _has_negative_priority(spec: Mapping[str, Any]) -> bool:
    priority = spec.get("priority")
    return isinstance(priority, int) and priority < 0


def _finished(manifest: Mapping[str, Any]) -> bool:
    return text(mapping(manifest.get("status")).get("phase")) in ("Succeeded", "Failed")


def _worker_or_none(manifest: Mapping[str, Any]) -> PodView | None:
    try:
        return pod_view(manifest)
    except FieldError:
        return None


def pod_view(manifest: Mapping[str, Any]) -> PodView:
    """Reads a possible worker. Raises `FieldError` if the name is not a worker's."""
    metadata, spec = readable_metadata(manifest), mapping(manifest.get("spec"))
    status = mapping(manifest.get("status"))
    attempt, rank = _attempt_and_rank(metadata["name"])
    state = _worker_state(status)
    ended = mapping(state.get("terminated"))
    sidecars = _native_sidecars(spec)
    failed_init = {} if ended else _failed_init(status, sidecars)
    final_text = text((ended or failed_init).get("message"))
    termination = _termination_report(final_text)
    reason, message = _init_reason(failed_init) if failed_init else _reason(status, state)
    sandbox = _condition(status, "PodReadyToStartContainers")
    return PodView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        job_uid=controller_uid(metadata),
        attempt=attempt,
        rank=rank,
        phase=_phase(status),
        node=text(spec.get("nodeName")) or None,
        gpus=_gpus(metadata["annotations"]),
        exit_code=_exit_code(ended),
        termination=termination,
        termination_text="" if termination else final_text[-_LOG_CHARACTERS_MAX:],
        reason=reason[:_TEXT_CHARACTERS_MAX],
        message=message[:_TEXT_CHARACTERS_MAX],
        reason_is_of_pod=bool(text(status.get("reason"))),
        disruption=_disruption(status)[:_TEXT_CHARACTERS_MAX],
        created_at=moment(metadata.get("creationTimestamp")),
        started_at=moment((mapping(state.get("running")) or ended).get("startedAt")),
        finished_at=moment(ended.get("finishedAt")),
        deletion_at=moment(metadata.get("deletionTimestamp")),
        grace_seconds=_grace_seconds(spec),
        record=_record_in(metadata["annotations"]),
        scheduled_since=moment(_condition(status, "PodScheduled").get("lastTransitionTime")),
        preempts=bool(text(status.get("nominatedNodeName"))),
        sandbox_ready=sandbox.get("status") != "False",
        last_change_at=_last_change(status),
        pulls_images=sandbox.get("status") == "True" and _may_pull(status, sidecars),
        addresses=_addresses(status),
        ready=_condition(status, "Ready").get("status") == "True",
    )


def _addresses(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns one address of each IP version."""
    found = (text(one.get("ip")) for one in mappings(status.get("podIPs")))
    return tuple(one for one in found if one)[:_ADDRESSES_MAX]


def _attempt_and_rank(pod_name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(pod_name)
    if match is None or int(match[1]) > ATTEMPT_MAX or int(match[2]) >= WORKERS_MAX:
        raise FieldError("metadata.name", f"is not <job>-<attempt>-<rank>; got {pod_name!r}")
    return int(match[1]), int(match[2])


def _grace_seconds(spec: Mapping[str, Any]) -> int | None:
    seconds = spec.get("terminationGracePeriodSeconds")
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        return None
    return seconds if 0 <= seconds <= INT32_MAX else None


def _phase(status: Mapping[str, Any]) -> PodPhase:
    phase = status.get("phase") or PodPhase.PENDING.value
    return _PHASES.get(text(phase), PodPhase.UNKNOWN)


def _gpus(annotations: Mapping[str, str]) -> tuple[str, ...]:
    listed = annotations.get(ANNOTATION_GPUS, "")
    return tuple(uuid for uuid in listed.split(",") if uuid)[:_GPUS_MAX]


def _record_in(annotations: Mapping[str, str]) -> PlacementRecord | None:
    written = annotations.get(ANNOTATION_PLACEMENT, "")
    return _record(written) if len(written) <= _RECORD_CHARACTERS_MAX else None


@lru_cache(maxsize=_RECORDS_MAX)
def _record(written: str) -> PlacementRecord | None:
    """Returns the record, as the same object for each event of a pod.

    Returns None for a record that cannot be read or that does not have exactly one worker.
    """
    if not written:
        return None
    try:
        record = decode(PlacementRecord, parse_json(written), ANNOTATION_PLACEMENT)
    except FieldError:
        return None
    return record if [worker.rank for worker in record.placement.workers] == [0] else None


def _worker_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in mappings(status.get("containerStatuses")):
        if container.get("name") == WORKER_CONTAINER:
            return mapping(container.get("state"))
    return {}


def _exit_code(ended: Mapping[str, Any]) -> int | None:
    code = ended.get("exitCode")
    is_code = isinstance(code, int) and not isinstance(code, bool) and abs(code) <= INT32_MAX
    return code if is_code else None


def _termination_report(final_text: str) -> Report | None:
    """Returns the worker's final report, or None, because any program may write any text there."""
    if not final_text.startswith("{"):
        return None
    try:
        return Report.from_text(final_text)
    except FieldError:
        return None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = (one for one in mappings(status.get("conditions")) if one.get("type") == kind)
    return next(found, {})


def _last_change(status: Mapping[str, Any]) -> datetime | None:
    kinds = ("initContainerStatuses", "containerStatuses")
    states = [mapping(one.get("state")) for kind in kinds for one in mappings(status.get(kind))]
    moments = [
        moment(mapping(state.get(phase)).get(at))
        for state in states
        for phase, at in (("running", "startedAt"), ("terminated", "finishedAt"))
    ]
    return max((one for one in moments if one is not None), default=None)


def _native_sidecars(spec: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the init containers that run as long as the worker."""
    containers = mappings(spec.get("initContainers"))
    sidecars = (one for one in containers if one.get("restartPolicy") == "Always")
    return frozenset(text(one.get("name")) for one in sidecars)


def _may_pull(status: Mapping[str, Any], sidecars: Set[str]) -> bool:
    """Returns whether a container may wait for nothing but its image.

    No init container runs that has to end first, and no native sidecar that has to be started
    first. Containers wait as in every normal start, of which the pull of an image is a part.
    """
    before = mappings(status.get("initContainerStatuses"))
    if any(_delays_next(one, sidecars) for one in before):
        return False
    containers = [*before, *mappings(status.get("containerStatuses"))]
    reasons = [
        text(mapping(mapping(one.get("state")).get("waiting")).get("reason")) for one in containers
    ]
    waiting = {reason for reason in reasons if reason}
    return bool(waiting) and waiting <= _ORDINARY_WAITING


def _delays_next(init_container: Mapping[str, Any], sidecars: Set[str]) -> bool:
    if not mapping(mapping(init_container.get("state")).get("running")):
        return False
    is_sidecar = text(init_container.get("name")) in sidecars
    # Its startup probe has not succeeded.
    return not is_sidecar or init_container.get("started") is False


def _reason(status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the most informative of Kubernetes' reasons for the pod's state.

    The reason for which a container ended comes before those for which others still wait.
    """
    if text(status.get("reason")):
        return text(status["reason"]), text(status.get("message"))
    reason = text(mapping(state.get("terminated")).get("reason"))
    if reason not in ("", "Completed"):
        return reason, ""
    kinds = ("initContainerStatuses", "containerStatuses")
    states = (mapping(one.get("state")) for kind in kinds for one in mappings(status.get(kind)))
    for one in (state, *states):
        waiting = mapping(one.get("waiting"))
        reason = text(waiting.get("reason"))
        if reason and reason not in _ORDINARY_WAITING:
            return reason, text(waiting.get("message"))
    return _unschedulable(status)


def _failed_init(status: Mapping[str, Any], sidecars: Set[str]) -> Mapping[str, Any]:
    """Returns the end of the init container because of which the pod failed, with its name, or an
    empty mapping. The kubelet ends native sidecars after it.
    """
    if text(status.get("phase")) != PodPhase.FAILED.value or text(status.get("reason")):
        return {}
    for one in mappings(status.get("initContainerStatuses")):
        ended = mapping(mapping(one.get("state")).get("terminated"))
        if _exit_code(ended) and text(one.get("name")) not in sidecars:
            return {**ended, "name": text(one.get("name"))}
    return {}


def _init_reason(ended: Mapping[str, Any]) -> tuple[str, str]:
    message = f"init container {ended['name']} exited with code {_exit_code(ended)}"
    return text(ended.get("reason")), message


def _unschedulable(status: Mapping[str, Any]) -> tuple[str, str]:
    for condition in mappings(status.get("conditions")):
        refused = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if refused or _is_disruption(condition):
            return text(condition.get("reason")), text(condition.get("message"))
    return "", ""


def _is_disruption(condition: Mapping[str, Any]) -> bool:
    """Returns False also if an intended disruption did not happen."""
    return condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"


def _disruption(status: Mapping[str, Any]) -> str:
    condition = _condition(status, "DisruptionTarget")
    return (
        (text(condition.get("reason")) or "DisruptionTarget") if _is_disruption(condition) else ""
    )
