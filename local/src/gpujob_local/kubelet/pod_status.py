"""The status that a kubelet would write for a pod. Pure; part of a process node."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Json = dict[str, Any]

EXIT_KILLED = 137
TERMINATION_MESSAGE_BYTES_MAX = 4096


@dataclass(slots=True)
class ContainerRecord:
    """The history of one container so far. `state` has the API's form."""

    name: str
    image: str
    container_id: str = ""
    restart_count: int = 0
    state: Json = field(default_factory=lambda: waiting("PodInitializing"))
    last_state: Json = field(default_factory=dict[str, Any])
    # Whether its readiness probe succeeds. Without a probe, a running container is ready.
    probe_succeeds: bool = True

    @property
    def ready(self) -> bool:
        return self.running and self.probe_succeeds

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """None until it has ended."""
        return self.state["terminated"]["exitCode"] if "terminated" in self.state else None

    def to_json(self, init: bool) -> Json:
        done = self.exit_code == 0
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "containerID": self.container_id,
            "restartCount": self.restart_count,
            "ready": done if init else self.ready,
            "started": self.running,
            "state": self.state,
            "lastState": self.last_state,
        }


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running(started_at: datetime) -> Json:
    return {"running": {"startedAt": timestamp(started_at)}}


def terminated(
    exit_code: int,
    started_at: datetime,
    finished_at: datetime,
    message: str = "",
    reason: str = "",
    container_id: str = "",
) -> Json:
    """Returns a terminated state. `reason` defaults to Completed or Error, by the exit code."""
    state: Json = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "startedAt": timestamp(started_at),
        "finishedAt": timestamp(finished_at),
    }
    if message:
        state["message"] = message
    if container_id:
        state["containerID"] = container_id
    return {"terminated": state}


def exit_code_of(return_code: int) -> int:
    """Returns the exit code in Kubernetes. A process ended by signal n (return code -n) has 128 +
    n.
    """
    return 128 - return_code if return_code < 0 else return_code


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def phase_of(
    restart_policy: str, init: Sequence[ContainerRecord], main: Sequence[ContainerRecord]
) -> str:
    """Returns the phase by the kubelet's rule: containers that have ended for good decide, then
    those that have ever started.
    """
    for record in init:
        if record.exit_code is None or (record.exit_code != 0 and restart_policy != "Never"):
            return "Pending"
        if record.exit_code != 0:
            return "Failed"
    if any(record.running for record in main):
        return "Running" if all(_started(record) for record in main) else "Pending"
    if all(record.exit_code is not None for record in main):
        if restart_policy == "Always":
            return "Running"
        if all(record.exit_code == 0 for record in main):
            return "Succeeded"
        return "Failed" if restart_policy == "Never" else "Running"
    return "Running" if all(_started(record) for record in main) else "Pending"


def _started(record: ContainerRecord) -> bool:
    return record.running or record.exit_code is not None or bool(record.last_state)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The node ended the pod for its own reason. The phase is then Failed."""

    reason: str
    message: str
    disruption: str = ""


def pod_status(
    pod: Json,
    init: Sequence[ContainerRecord],
    main: Sequence[ContainerRecord],
    now: datetime,
    verdict: Verdict | None = None,
) -> Json:
    """Returns phase, conditions and container statuses. The caller adds addresses."""
    spec = pod["spec"]
    phase = phase_of(spec.get("restartPolicy", "Always"), init, main)
    ended = not any(record.running for record in (*init, *main))
    if verdict is not None and ended:
        phase = "Failed"
    status: Json = {
        "phase": phase,
        "conditions": _conditions(pod, phase, init, main, now, verdict),
        "containerStatuses": [record.to_json(init=False) for record in main],
        "initContainerStatuses": [record.to_json(init=True) for record in init],
        "startTime": pod.get("status", {}).get("startTime") or timestamp(now),
    }
    if verdict is not None and phase == "Failed":
        status |= {"reason": verdict.reason, "message": verdict.message}
    return status


def _conditions(
    pod: Json,
    phase: str,
    init: Sequence[ContainerRecord],
    main: Sequence[ContainerRecord],
    now: datetime,
    verdict: Verdict | None,
) -> list[Json]:
    initialized = all(record.exit_code == 0 for record in init)
    ready = phase == "Running" and all(record.ready for record in main)
    not_ready = ("", "") if ready else _not_ready(phase, main)
    not_initialized = ("", "") if initialized else _not_initialized(init)
    wanted = [
        ("PodReadyToStartContainers", phase not in ("Succeeded", "Failed"), ("", "")),
        ("Initialized", initialized, not_initialized),
        ("ContainersReady", ready, not_ready),
        ("Ready", ready, not_ready),
    ]
    if verdict is not None and verdict.disruption:
        wanted.append(("DisruptionTarget", True, (verdict.disruption, verdict.message)))
    before = {item["type"]: item for item in pod.get("status", {}).get("conditions", [])}
    return [_condition(before.get(kind), kind, true, why, now) for kind, true, why in wanted]


def _condition(
    before: Json | None, kind: str, true: bool, why: tuple[str, str], now: datetime
) -> Json:
    status = "True" if true else "False"
    same = before is not None and before["status"] == status
    since = before.get("lastTransitionTime") if before is not None and same else timestamp(now)
    condition = {"type": kind, "status": status, "lastTransitionTime": since}
    # A merge patch keeps fields that it does not name, so an old reason must be removed by name.
    return condition | {"reason": why[0] or None, "message": why[1] or None}


def _not_ready(phase: str, main: Sequence[ContainerRecord]) -> tuple[str, str]:
    if phase == "Succeeded":
        return "PodCompleted", ""
    if phase == "Failed":
        return "PodFailed", ""
    names = " ".join(record.name for record in main if not record.ready)
    return "ContainersNotReady", f"containers with unready status: [{names}]"


def _not_initialized(init: Sequence[ContainerRecord]) -> tuple[str, str]:
    names = " ".join(record.name for record in init if record.exit_code != 0)
    return "ContainersNotInitialized", f"containers with incomplete status: [{names}]"


def termination_message(file_content: bytes, log_tail: bytes, exit_code: int, policy: str) -> str:
    """Returns the file's first 4,096 bytes. With FallbackToLogsOnError, a failure without a file
    has its last 80 log lines.
    """
    content = file_content[:TERMINATION_MESSAGE_BYTES_MAX]
    if not content and exit_code != 0 and policy == "FallbackToLogsOnError":
        content = b"\n".join(log_tail[-2048:].splitlines()[-80:])
    return content.decode(errors="replace")
