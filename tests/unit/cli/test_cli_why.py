"""kubectl gpujob why: the reason with its numbers stands on top."""

import pytest

from kubectl_gpujob.verbs import why
from kubectl_gpujob.verbs.why import Position
from tests.harness.cli_jobs import NOW, condition, job, succeeded_status

INSUFFICIENT_CAPACITY = "needs 20 GiB on one GPU; the most free is 11.2 GiB on node-b GPU-2c"


def test_what_hinders_stands_on_top_without_what_holds() -> None:
    conditions = [condition("Accepted", "True", "Valid", "the spec is valid")]
    conditions += [condition("Scheduled", "False", "InsufficientCapacity", INSUFFICIENT_CAPACITY)]
    conditions += [condition("Succeeded", "Unknown", "InProgress", "not finished yet")]
    found = why.rows(job(status={"conditions": conditions}), None, NOW)
    assert found[0] == ("Reason", INSUFFICIENT_CAPACITY)
    assert {label for label, _ in found} == {"Reason", "Next"}


@pytest.mark.parametrize(
    ("phase", "decisive", "label"),
    [
        ("Pending", "Scheduled", "Reason"),
        ("Running", "Running", "Running"),
        ("Stopping", "Running", "Stopping"),
        ("Failed", "Failed", "Reason"),
        ("Succeeded", "Succeeded", "Succeeded"),
    ],
)
def test_what_the_phase_rests_on_stands_on_top(phase: str, decisive: str, label: str) -> None:
    types = ("Accepted", "Scheduled", "Running", "Succeeded", "Failed", "Untuned")
    for value in ("True", "False"):
        conditions = [condition(one, value, "R", f"of {one}") for one in types]
        found = why.rows(job(status={"phase": phase, "conditions": conditions}), None, NOW)
        assert found[0] == (label, f"of {decisive}")


@pytest.mark.parametrize(
    ("kind", "value", "label"),
    [
        ("Untuned", "True", "Untuned"),
        ("Untuned", "False", None),
        ("Unprotected", "True", "Unprotected"),
        ("GPUPressure", "True", "GPUPressure"),
        ("Accepted", "False", "Accepted"),
        ("Accepted", "True", None),
        ("Finished", "True", None),
        ("Suspended", "False", None),
        ("Succeeded", "Unknown", None),
        ("Scheduled", "True", "Placed"),
        ("FromAnotherVersion", "True", "FromAnotherVersion"),
    ],
)
def test_a_condition_is_shown_if_it_adds_to_the_phase(
    kind: str, value: str, label: str | None
) -> None:
    conditions = [condition("Running", "True", "WorkersRunning", "1 worker on n0")]
    conditions += [condition(kind, value, "R", "the message")]
    status = {"phase": "Running", "conditions": conditions}
    found = {text: label for label, text in why.rows(job(status=status), None, NOW)}
    assert found.get("the message") == label


def test_a_pending_job_shows_how_its_last_attempt_ended() -> None:
    conditions = [condition("Scheduled", "False", "BackingOff", "again in 40 s")]
    conditions += [condition("Running", "False", "NodeLost", "attempt 1: node n0 was lost")]
    found = why.rows(job(status={"attempt": 1, "conditions": conditions}), None, NOW)
    assert found[:2] == [
        ("Reason", "again in 40 s"), ("Last attempt", "attempt 1: node n0 was lost"),
    ]  # fmt: skip


def test_a_condition_without_a_message_shows_its_reason() -> None:
    conditions = [condition("Running", "True", "WorkersRunning")]
    found = why.rows(job(status={"phase": "Running", "conditions": conditions}), None, NOW)
    assert found == [("Running", "WorkersRunning")]


@pytest.mark.parametrize(
    ("spec", "status", "said"),
    [
        ({}, {}, "waits for 10m 00s"),
        ({}, {"conditions": [condition("Scheduled", "False", "OverQuota")]},
         "waits for 10m 00s: OverQuota"),
        ({"suspend": True}, {"attempt": 2}, "is suspended, attempt 2"),
        ({}, {"phase": "Starting", "attempt": 1, "attemptStartedAt": "2026-11-20T11:59:50Z"},
         "is starting for 10 s, attempt 1"),
        ({}, {"phase": "Running", "attempt": 1, "attemptStartedAt": "2026-11-20T11:00:00Z"},
         "has run for 1h 00m, attempt 1"),
        ({}, {"phase": "Failed", "attempt": 4,
              "conditions": [condition("Failed", "True", "UserError")]},
         "failed: UserError, attempt 4"),
        ({}, succeeded_status(), "succeeded, attempt 2"),
    ],
)  # fmt: skip
def test_the_headline_is_a_sentence(
    spec: dict[str, object], status: dict[str, object], said: str
) -> None:
    assert why.headline(job(spec=spec, status=status), NOW) == f"vision/resnet50 {said}"


def test_a_message_is_told_once() -> None:
    text = "attempt 4: worker 0 exited with code 2: no such file"
    status = {
        "phase": "Failed",
        "conditions": [condition(one, "True", "Unknown", text) for one in ("Failed", "Running")],
        "failure": {
            "failureClass": "Unknown",
            "message": "worker 0 exited with code 2: no such file",
        },
    }
    found = why.rows(job(status=status), None, NOW)
    assert sum("no such file" in row[1] for row in found) == 1
    assert "Failure" not in dict(found)


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        ("OverQuota", "queue x uses 2 of 2 GPUs", True),
        ("InsufficientCapacity", "needs 1; position 1 of the jobs waiting for GPUs", False),
        ("Unsatisfiable", "6 too small", False),
        ("SpecRejected", "spec.checkpoint", False),
        ("Suspended", "spec.suspend is true", False),
    ],
)
def test_there_is_one_position_and_none_for_who_waits_for_something_else(
    reason: str, message: str, told: bool
) -> None:
    conditions = [condition("Scheduled", "False", reason, message)]
    found = why.rows(job(status={"conditions": conditions}), Position(2, 5), NOW)
    assert ("Queue" in dict(found)) is told


def test_of_a_pending_job_that_nobody_looked_at_it_is_asked_whether_the_operator_runs() -> None:
    found = why.rows(job(status={"observedGeneration": 0}), Position(1, 1), NOW)
    assert dict(found)["Operator"].endswith("is the operator running?")


def test_a_job_that_nobody_looked_at_says_so() -> None:
    fresh = job(status={"observedGeneration": 1})
    assert why.rows(fresh, None, NOW) == [
        ("Operator", "has not processed this job yet; is the operator running?")
    ]


def test_an_edit_that_was_not_seen_yet_is_told() -> None:
    assert ("Operator", "has not processed the latest change of this job yet") in why.rows(
        job(status={"observedGeneration": 0}), None, NOW
    )


def test_a_failure_and_the_next_attempt_are_told() -> None:
    status = {
        "attempt": 1,
        "failure": {"failureClass": "OutOfMemory", "message": "needed 21 GiB of 20 GiB"},
        "nextAttemptAt": "2026-11-20T12:00:40Z",
    }
    found = why.rows(job(status=status), None, NOW)
    assert ("Failure", "OutOfMemory: needed 21 GiB of 20 GiB") in found
    assert ("Next attempt", "in 40 s") in found


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        ({}, "kubectl logs -n vision resnet50-3-0 -c worker"),
        (
            {"workers": 2},
            "kubectl logs -n vision -l gpujob.dev/job-uid={uid},gpujob.dev/attempt=3 -c worker "
            "--prefix --tail 20",
        ),
    ],
    ids=["one", "gang"],
)
def test_a_failed_job_says_where_its_log_is(spec: dict[str, object], command: str) -> None:
    failed = job(spec=spec, status={"phase": "Failed", "attempt": 3})
    expected = command.format(uid=failed.metadata.uid)
    assert dict(why.rows(failed, None, NOW))["Log"] == expected
    running = job(spec=spec, status={"phase": "Running", "attempt": 3})
    assert "Log" not in dict(why.rows(running, None, NOW))


def test_a_retry_time_that_is_over_is_not_told() -> None:
    found = why.rows(job(status={"nextAttemptAt": "2026-11-20T11:00:00Z"}), None, NOW)
    assert "Next attempt" not in dict(found)


def test_stopping_tells_the_grace_that_is_left() -> None:
    stop = {"reason": "Reclaim", "message": "node-s goes away", "deadline": "2026-11-20T12:00:25Z"}
    found = why.rows(job(status={"phase": "Stopping", "stop": stop}), None, NOW)
    assert ("Stopping", "Reclaim: node-s goes away (grace: 25 s left)") in found


def test_the_place_goes_by_priority_then_age() -> None:
    ours = job(name="ours", created="2026-11-20T11:50:00Z")
    others = [
        ours,
        job(name="urgent", spec={"priority": 5}, created="2026-11-20T11:59:00Z"),
        job(name="older", created="2026-11-20T11:40:00Z"),
        job(name="younger", created="2026-11-20T11:55:00Z"),
    ]
    assert why.position(ours, others) == Position(place=3, waiting=4)


@pytest.mark.parametrize(
    "other",
    [
        {"spec": {"queue": "another", "priority": 9}},
        {"spec": {"suspend": True, "priority": 9}},
        {"spec": {"priority": 9}, "status": {"phase": "Running"}},
    ],
    ids=["another queue", "suspended", "running"],
)
def test_who_does_not_wait_here_is_not_ahead(other: dict[str, object]) -> None:
    ours = job(name="ours")
    assert why.position(ours, [ours, job(name="other", **other)]) == Position(1, 1)


def test_a_running_job_has_no_place() -> None:
    ours = job(status={"phase": "Running"})
    assert why.position(ours, [ours]) is None


def test_the_place_is_told() -> None:
    found = why.rows(job(), Position(3, 7), NOW)
    assert ("Queue", "research: 3rd of 7 pending, by priority and age") in found


def test_json_has_the_same_facts() -> None:
    conditions = [condition("Scheduled", "False", "InsufficientCapacity", INSUFFICIENT_CAPACITY)]
    found = why.as_json(job(status={"conditions": conditions}), Position(3, 7))
    assert found["queue"] == {"name": "research", "position": 3, "waiting": 7}
    assert found["conditions"][0]["message"] == INSUFFICIENT_CAPACITY
    assert found["phase"] == "Pending"
    assert "failure" not in found
