"""Phases and conditions as a kubelet gives them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpujob_local.kubelet.pod_status import (
    ContainerRecord,
    Verdict,
    exit_code_of,
    phase_of,
    pod_status,
    running,
    terminated,
    termination_message,
    waiting,
)

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def record(state: str) -> ContainerRecord:
    """w: waiting, r: running, 0 to 9: ended with this code, b: waits to be started again."""
    made = ContainerRecord("c", "image")
    if state == "r":
        made.state = running(NOW)
    elif state.isdigit():
        made.state = terminated(int(state), NOW, NOW)
    elif state == "b":
        made.state = waiting("CrashLoopBackOff")
        made.last_state = terminated(1, NOW, NOW)
    return made


@pytest.mark.parametrize(
    ("policy", "init", "main", "phase"),
    [
        ("Never", "", "w", "Pending"),
        ("Never", "", "r", "Running"),
        ("Never", "", "0", "Succeeded"),
        ("Never", "", "1", "Failed"),
        ("Never", "", "0r", "Running"),
        ("Never", "", "1r", "Running"),
        ("Never", "", "01", "Failed"),
        ("Never", "", "rw", "Pending"),
        ("Never", "r", "w", "Pending"),
        ("Never", "1", "w", "Failed"),
        ("Never", "0", "w", "Pending"),
        ("Never", "0", "r", "Running"),
        ("OnFailure", "1", "w", "Pending"),
        ("OnFailure", "", "0", "Succeeded"),
        ("OnFailure", "", "b", "Running"),
        ("OnFailure", "", "1", "Running"),
        ("Always", "", "0", "Running"),
        ("Always", "", "b", "Running"),
    ],
)
def test_phase(policy: str, init: str, main: str, phase: str) -> None:
    assert phase_of(policy, [record(s) for s in init], [record(s) for s in main]) == phase


def status(main: str, before: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    pod = {"spec": {"restartPolicy": "Never"}, "status": before or {}}
    return pod_status(pod, [], [record(s) for s in main], more.pop("now", NOW), **more)


def condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(item for item in found["conditions"] if item["type"] == kind)


def test_conditions_of_a_running_and_of_a_finished_pod() -> None:
    found = status("r")
    assert condition(found, "Ready")["status"] == "True"
    assert found["containerStatuses"][0]["ready"]
    ended = status("0", before=found)
    assert condition(ended, "Ready")["reason"] == "PodCompleted"
    assert condition(ended, "PodReadyToStartContainers")["status"] == "False"
    assert not ended["containerStatuses"][0]["ready"]


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = status("r")
    later = status("r", before=first, now=NOW + timedelta(minutes=1))
    assert later == first
    ended = status("1", before=first, now=NOW + timedelta(minutes=1))
    assert condition(ended, "Ready")["lastTransitionTime"] == "2030-01-02T03:05:05Z"
    assert condition(ended, "Initialized")["lastTransitionTime"] == "2030-01-02T03:04:05Z"


def test_a_verdict_of_the_node_makes_the_pod_failed_once_nothing_runs() -> None:
    verdict = Verdict("Terminated", "node shutdown", "TerminationByKubelet")
    assert status("r", verdict=verdict)["phase"] == "Running"
    ended = status("0", verdict=verdict)
    assert (ended["phase"], ended["reason"]) == ("Failed", "Terminated")
    assert condition(ended, "DisruptionTarget")["reason"] == "TerminationByKubelet"


@pytest.mark.parametrize(("code", "shown"), [(0, 0), (7, 7), (-15, 143), (-9, 137), (143, 143)])
def test_signals_are_128_and_more(code: int, shown: int) -> None:
    assert exit_code_of(code) == shown


def test_termination_messages() -> None:
    assert termination_message(b"x" * 5000, b"", 0, "File") == "x" * 4096
    assert termination_message(b"", b"log", 1, "File") == ""
    assert termination_message(b"", b"log", 0, "FallbackToLogsOnError") == ""
    assert termination_message(b"file", b"log", 1, "FallbackToLogsOnError") == "file"
    lines = b"\n".join(b"%d" % number for number in range(100))
    kept = termination_message(b"", lines, 1, "FallbackToLogsOnError").splitlines()
    assert (kept[0], kept[-1], len(kept)) == ("20", "99", 80)
    assert termination_message(b"\xff", b"", 1, "File") == "\ufffd"
