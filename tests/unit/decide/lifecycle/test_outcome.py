"""How an attempt's end is judged, and when the job is tried again."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Counters, GPUJob, JobFailure, StopReason
from gpujob_api.report import CheckpointReport, FailureClass, WorkerPhase
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome, judge
from gpujob_operator.decide.lifecycle.retry import (
    FRUITLESS_INTERRUPTIONS_MAX,
    interrupted,
    retry_decision,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import PodPhase
from tests.harness.builders import (
    T0,
    after,
    make_job,
    make_pod,
    make_report,
    measured,
    running,
    with_status,
)

CONFIGURATION = Configuration()
INTERRUPTION = Outcome(AttemptEnd.INTERRUPTED)
GANG = (("n0", ("GPU-0",)), ("n0", ("GPU-1",)))


def ended(exit_code: int | None = None, *, job: GPUJob | None = None, **fields: Any) -> Any:
    """The judgement on a single worker that ended like this."""
    job = job or running(make_job())
    pod = make_pod(job, phase=PodPhase.FAILED, exit_code=exit_code, **fields)
    return judge(job, (pod,))


def stopped(reason: str) -> GPUJob:
    return running(make_job(), stop=StopReason(reason, "because", after(30)))


def failed(kind: FailureClass) -> Any:
    return make_report(failure=kind, message="the words")


@pytest.mark.parametrize(
    ("exit_code", "end", "kind"),
    [
        (0, AttemptEnd.SUCCEEDED, None),
        (1, AttemptEnd.FAILED, FailureClass.UNKNOWN),
        (2, AttemptEnd.FAILED, FailureClass.UNKNOWN),
        (130, AttemptEnd.FAILED, FailureClass.UNKNOWN),
        (137, AttemptEnd.FAILED, FailureClass.UNKNOWN),
        (139, AttemptEnd.FAILED, FailureClass.UNKNOWN),
        (143, AttemptEnd.INTERRUPTED, None),
        (144, AttemptEnd.INTERRUPTED, None),
    ],
)
def test_exit_codes(exit_code: int, end: AttemptEnd, kind: FailureClass | None) -> None:
    """I4: every end of a process has one meaning; 143 and 144 are not the job's fault."""
    outcome = ended(exit_code)
    assert outcome.end is end
    assert (outcome.failure.failure_class if outcome.failure else None) is kind
    if kind is not None:
        assert f"code {exit_code}" in outcome.failure.message


@pytest.mark.parametrize("kind", list(FailureClass))
def test_the_worker_names_the_class_of_its_failure(kind: FailureClass) -> None:
    outcome = ended(1, termination=failed(kind))
    assert outcome.failure == JobFailure(kind, "the words")


@pytest.mark.parametrize(
    "reason",
    ["Evicted", "OutOfcpu", "OutOfmemory", "NodeLost", "NodeShutdown", "Terminated", "Preempting",
     "DeletionByPodGC", "NodeAffinity", "UnexpectedAdmissionError"],
)  # fmt: skip
@pytest.mark.parametrize("exit_code", [None, 137, 143])
def test_what_the_node_did_is_an_interruption(reason: str, exit_code: int | None) -> None:
    """I9: an eviction does not use up the job's retries, whatever exit code it left."""
    assert ended(exit_code, reason=reason).end is AttemptEnd.INTERRUPTED


def test_a_process_that_did_not_survive_a_restart_of_its_node_was_interrupted() -> None:
    """containerd gives it an exit code of its own, with the reason Unknown."""
    outcome = ended(255, reason="Unknown")
    assert (outcome.end, outcome.lost_node) == (AttemptEnd.INTERRUPTED, "n0")
    assert ended(255, reason="Error").end is AttemptEnd.FAILED


def test_failed_without_ever_running_is_a_failure_with_its_reason() -> None:
    outcome = ended(None, reason="CreateContainerConfigError", message="no such config map")
    assert outcome.end is AttemptEnd.FAILED
    assert "no such config map" in outcome.failure.message


def test_a_kill_for_host_memory_is_no_lack_of_gpu_memory() -> None:
    """I9: a whole GPU would not help; the job is not placed as if it had run out there."""
    outcome = ended(137, reason="OOMKilled")
    assert outcome.failure.failure_class is FailureClass.HOST_OUT_OF_MEMORY
    decision = retry_decision(running(make_job()), outcome, CONFIGURATION, T0)
    assert decision.counters == Counters(errors=1)


def test_pods_that_are_gone_were_taken() -> None:
    assert judge(running(make_job()), ()).end is AttemptEnd.INTERRUPTED


@pytest.mark.parametrize(
    ("reason", "kind"), [("Hung", FailureClass.HUNG), ("StartTimeout", FailureClass.UNKNOWN)]
)
@pytest.mark.parametrize("exit_code", [137, 143, None])
def test_stops_that_are_failures(reason: str, kind: FailureClass, exit_code: int | None) -> None:
    outcome = ended(exit_code, job=stopped(reason))
    assert outcome.failure == JobFailure(kind, "because")


@pytest.mark.parametrize(
    "reason", ["NodeReclaimed", "Suspended", "GPUOvercommitted", "GPUUnhealthy"]
)
@pytest.mark.parametrize("exit_code", [143, 144, 137])
def test_stopped_by_us_is_an_interruption(reason: str, exit_code: int) -> None:
    """I13: also when the grace was too short and SIGKILL ended it."""
    assert ended(exit_code, job=stopped(reason)).end is AttemptEnd.INTERRUPTED


@pytest.mark.parametrize("reason", ["Suspended", "NodeReclaimed"])
def test_exit_zero_without_a_word_is_no_end_of_an_attempt_that_is_stopped(reason: str) -> None:
    """It may have heard of it: by the reply to a report, or by a node that goes."""
    assert ended(0, job=stopped(reason)).end is AttemptEnd.INTERRUPTED
    assert ended(0).end is AttemptEnd.SUCCEEDED


@pytest.mark.promise("I13")
@pytest.mark.parametrize(
    ("words", "end"),
    [
        ({"phase": WorkerPhase.DRAINING}, AttemptEnd.INTERRUPTED),
        ({"phase": WorkerPhase.FINISHED}, AttemptEnd.INTERRUPTED),
        ({"phase": WorkerPhase.FINISHED, "steps_total": 11}, AttemptEnd.INTERRUPTED),
        ({"phase": WorkerPhase.DRAINING, "steps_total": 10}, AttemptEnd.SUCCEEDED),
    ],
)
def test_exit_zero_after_a_stop_is_the_end_at_the_last_step_alone(
    words: dict[str, Any], end: AttemptEnd
) -> None:
    """A trainer that saves on SIGTERM and returns: the script goes on to its end, and exits 0."""
    report = make_report(step=10, **words)
    assert ended(0, job=stopped("NodeReclaimed"), termination=report).end is end
    heard_nothing = words["phase"] is WorkerPhase.FINISHED
    by_itself = AttemptEnd.SUCCEEDED if heard_nothing else end
    assert ended(0, termination=report).end is by_itself, "we told it nothing"


@pytest.mark.parametrize("reason", ["Preempted", "Suspended", "GPUUnhealthy"])
def test_a_script_that_ended_before_the_stop_is_done(reason: str) -> None:
    """I5: it stopped early by itself, and the operator decided before it had seen that."""
    words = make_report(step=10, steps_total=40, phase=WorkerPhase.FINISHED)
    job = stopped(reason)
    assert ended(0, job=job, termination=words).end is AttemptEnd.SUCCEEDED
    asked = ended(0, job=job, termination=words, deletion_at=after(20))
    assert asked.end is AttemptEnd.INTERRUPTED
    killed = replace(make_pod(job, exit_code=0, termination=words), phase=PodPhase.FAILED)
    assert judge(job, (killed,)).end is AttemptEnd.INTERRUPTED, "its kubelet shut down"
    draining = make_report(step=10, steps_total=40, phase=WorkerPhase.DRAINING)
    assert ended(0, job=job, termination=draining).end is AttemptEnd.INTERRUPTED


def test_a_launcher_whose_workers_left_as_asked_was_interrupted() -> None:
    """torchrun ends with 1 when its processes end with 143."""
    left = make_report(step=7, phase=WorkerPhase.DRAINING)
    assert ended(1, job=stopped("NodeReclaimed"), termination=left).end is AttemptEnd.INTERRUPTED
    assert ended(1, termination=left).end is AttemptEnd.INTERRUPTED, "a kubelet may have asked"
    for own_code in (2, 15, 130, 241):
        assert ended(own_code, termination=left).end is AttemptEnd.INTERRUPTED
    assert ended(139, termination=left).end is AttemptEnd.FAILED, "nobody asks for a crash"
    trained = make_report(step=7, phase=WorkerPhase.TRAINING)
    assert ended(1, job=stopped("NodeReclaimed"), termination=trained).end is AttemptEnd.FAILED


def test_exit_zero_without_a_word_is_an_interruption_once_the_pod_is_deleted() -> None:
    job = stopped("Preempted")
    assert ended(0, job=job, deletion_at=after(20)).end is AttemptEnd.INTERRUPTED
    assert ended(0, deletion_at=after(20)).end is AttemptEnd.INTERRUPTED, "by whomever"
    gang = running(make_job(workers=2), *GANG, stop=StopReason("Suspended", "x", after(30)))
    done = make_pod(gang, 0, exit_code=0, termination=make_report(phase=WorkerPhase.FINISHED))
    early = make_pod(gang, 1, exit_code=0, termination=make_report(phase=WorkerPhase.DRAINING))
    assert judge(gang, (done, early)).end is AttemptEnd.INTERRUPTED
    hung = ended(0, job=stopped("Hung"), deletion_at=after(20))
    assert hung.failure == JobFailure(FailureClass.HUNG, "because")


def test_a_failure_while_being_stopped_is_a_failure() -> None:
    outcome = ended(1, job=stopped("Suspended"), termination=failed(FailureClass.CHECKPOINT))
    assert outcome.failure.failure_class is FailureClass.CHECKPOINT


def test_one_killed_rank_of_a_gang_is_a_failure_as_for_a_single_worker() -> None:
    """I4: or else a gang whose rank is always killed would be tried for ever."""
    job = running(make_job(workers=2), *GANG, stop=StopReason("WorkerEnded", "x", after(30)))
    pods = (make_pod(job, 0, exit_code=143), make_pod(job, 1, exit_code=137))
    assert judge(job, pods).end is AttemptEnd.FAILED


def test_the_cause_is_reported_and_not_the_rank_that_fell_over_it() -> None:
    job = running(make_job(workers=2), *GANG, stop=StopReason("WorkerEnded", "x", after(30)))
    cause = make_report(failure=FailureClass.OUT_OF_MEMORY, rank=1)
    pods = (
        make_pod(job, 0, exit_code=137, finished_at=after(40), deletion_at=after(10)),
        make_pod(job, 1, exit_code=1, finished_at=after(5), termination=cause),
    )
    outcome = judge(job, pods)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.OUT_OF_MEMORY


def test_a_gang_succeeds_only_with_all_of_its_workers() -> None:
    job = running(make_job(workers=2), *GANG)
    done = make_pod(job, 0, exit_code=0)
    assert judge(job, (done,)).end is AttemptEnd.INTERRUPTED
    assert judge(job, (done, make_pod(job, 1, exit_code=0))).end is AttemptEnd.SUCCEEDED


def decide(kind: FailureClass, job: GPUJob, step: int = 0) -> Any:
    outcome = Outcome(AttemptEnd.FAILED, JobFailure(kind, "x"), step)
    return retry_decision(job, outcome, CONFIGURATION, T0)


@pytest.mark.promise("I4")
@pytest.mark.parametrize("kind", list(FailureClass))
def test_every_class_is_counted_and_bounded(kind: FailureClass) -> None:
    """I4: no class of failure is repeated for ever; the limit's number is in the message."""
    job = running(make_job(retries=2), measurement=measured(1, step=5))
    delays: list[float] = []
    for _ in range(20):
        decision = decide(kind, job)
        job = with_status(job, counters=decision.counters)
        if not decision.retry:
            assert decision.message == "failed 3 times, retry.limit is 2"
            break
        delays.append((decision.next_attempt_at - T0).total_seconds())
    assert delays == [10, 20]


def test_backoff_is_bounded() -> None:
    job = running(make_job(retries=30), counters=Counters(errors=25))
    decision = decide(FailureClass.UNKNOWN, job)
    assert decision.next_attempt_at == after(CONFIGURATION.retry_backoff_max_seconds)


@pytest.mark.parametrize(
    ("status", "step", "again"),
    [
        ({}, 0, False),
        ({}, 1, True),
        ({"measurement": measured(1, step=3)}, 0, True),
        ({"checkpoint": CheckpointReport(3)}, 0, True),
    ],
)
def test_user_errors_are_repeated_only_after_a_first_step(
    status: dict[str, Any], step: int, again: bool
) -> None:
    decision = decide(FailureClass.USER_ERROR, running(make_job(), **status), step)
    assert decision.retry is again
    assert again or "first training step" in decision.message


def test_limit_zero_means_one_attempt() -> None:
    assert not decide(FailureClass.UNKNOWN, running(make_job(retries=0))).retry


def test_an_interruption_is_tried_again_at_once_and_uses_no_retry() -> None:
    job = running(make_job(retries=0))
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
    assert decision.retry
    assert decision.next_attempt_at == after(60)
    assert decision.counters == Counters(interruptions=1, fruitless=1)


LOST = frozenset({"n0"})


def test_an_attempt_whose_node_went_away_is_counted_apart_and_uses_no_retry() -> None:
    job = running(make_job(retries=0))
    outcome = judge(job, (), LOST)
    assert (outcome.end, outcome.lost_node) == (AttemptEnd.INTERRUPTED, "n0")
    decision = interrupted(job, outcome, CONFIGURATION, after(60))
    assert decision.retry
    assert decision.counters == Counters(node_lost=1, fruitless=1)
    failed_before = running(make_job(retries=1), counters=Counters(node_lost=5))
    assert decide(FailureClass.UNKNOWN, failed_before).retry


def test_fruitless_attempts_on_nodes_that_go_away_end() -> None:
    counters = Counters(fruitless=FRUITLESS_INTERRUPTIONS_MAX)
    job = running(make_job(), counters=counters)
    assert not interrupted(job, judge(job, (), LOST), CONFIGURATION, after(60)).retry


def test_a_pod_that_the_garbage_collector_let_fail_lost_its_node() -> None:
    """No exit code is known of it, as of a pod that could not be started."""
    outcome = ended(None, reason="DeletionByPodGC", message="PodGC: node no longer exists")
    assert (outcome.end, outcome.lost_node) == (AttemptEnd.INTERRUPTED, "n0")


@pytest.mark.parametrize("reason", ["ContainerStatusUnknown", "NodeLost"])
def test_a_node_that_restarted_lost_its_attempts(reason: str) -> None:
    outcome = ended(137, reason=reason)
    assert (outcome.end, outcome.lost_node) == (AttemptEnd.INTERRUPTED, "n0")


@pytest.mark.parametrize("reason", ["NodeReclaimed", "Suspended"])
def test_a_node_that_goes_after_a_notice_is_an_interruption(reason: str) -> None:
    assert judge(stopped(reason), (), LOST) == INTERRUPTION


def test_only_the_node_of_a_worker_without_an_end_was_lost() -> None:
    job = running(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    saved = make_pod(job, 0, exit_code=143)
    assert judge(job, (saved,), LOST).lost_node == ""
    assert judge(job, (saved,), frozenset({"n1"})).lost_node == "n1"


def test_an_attempt_that_ended_at_once_waits_before_the_next() -> None:
    """I8: a node that refuses its pods is not asked in a tight loop."""
    job = running(make_job(), checkpoint=CheckpointReport(9))
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(1))
    assert decision.next_attempt_at == after(1 + CONFIGURATION.retry_backoff_seconds)


def test_last_step_of_any_worker_counts() -> None:
    job = running(make_job(workers=2), *GANG)
    pods = tuple(
        replace(make_pod(job, rank, exit_code=1), termination=make_report(step=step))
        for rank, step in ((0, 3), (1, 8))
    )
    assert judge(job, pods).step == 8


def test_where_a_last_report_stands_in_place_of_the_logs_last_lines_the_log_is_named() -> None:
    job = running(make_job())
    pod = replace(make_pod(job, exit_code=1), termination=make_report(step=3))
    failure = judge(job, (pod,)).failure
    assert failure is not None
    assert f"kubectl logs {pod.name}" in failure.message


def with_resources(resources: object) -> GPUJob:
    job = running(make_job())
    container = {"name": "worker", "image": "i", "resources": resources}
    template = {"spec": {"containers": [container]}}
    return replace(job, spec=replace(job.spec, template=template))


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"limits": {"memory": "300Mi"}}, "its memory limit of 300Mi (resources.limits.memory)"),
        ({"limits": {"cpu": 1}}, "the memory limit that a LimitRange of the namespace gives it"),
        (None, "LimitRange"),
        ("odd", "LimitRange"),
    ],
    ids=str,
)
def test_a_worker_that_is_killed_for_host_memory_is_told_which_limit(
    resources: object, words: str
) -> None:
    outcome = ended(137, job=with_resources(resources), reason="OOMKilled")
    assert outcome.failure.failure_class is FailureClass.HOST_OUT_OF_MEMORY
    assert words in outcome.failure.message


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
def test_a_command_that_is_not_in_the_image_is_not_repeated(reason: str) -> None:
    """It was: four attempts of what can never start."""
    words = 'exec: "train": executable file not found in $PATH'
    job = running(make_job())
    outcome = ended(128, job=job, reason=reason, termination_text=words)
    assert outcome.failure.failure_class is FailureClass.USER_ERROR
    assert outcome.failure.message == f"worker 0 could not be started: {words}"
    assert not retry_decision(job, outcome, CONFIGURATION, T0).retry


def test_a_command_in_one_word_gets_advice() -> None:
    words = 'exec: "python train.py": executable file not found in $PATH'
    outcome = ended(128, job=running(make_job()), reason="StartError", termination_text=words)
    advice = "; write the command as a list of words, such as [python, train.py]"
    assert outcome.failure.message == f"worker 0 could not be started: {words}{advice}"
