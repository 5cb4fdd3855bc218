"""A worker of a gang that fails because another one was ended from outside is no failure."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobFailure, StopReason
from gpujob_api.report import FailureClass, Report, WorkerPhase
from gpujob_operator.decide.lifecycle.done import Circumstances
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome, judge
from gpujob_operator.decide.model.snapshot import PodPhase
from tests.harness.builders import after, make_job, make_pod, make_report, running, with_status

GANG = running(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
NCCL = "DistBackendError: NCCL error: remote process exited or there was a network error"
# How the other worker ends.
EVICTED = {"exit_code": 143, "reason": "Evicted"}
DRAINED = {"exit_code": 143, "disruption": "EvictionByEvictionAPI"}
REBOOTED = {"exit_code": 255, "reason": "Unknown"}


def said(message: str, step: int = 0, kind: FailureClass = FailureClass.USER_ERROR) -> Report:
    return make_report(step=step, failure=kind, message=message)


def judged(
    other: dict[str, Any] | None, own: dict[str, Any], job: GPUJob = GANG, **known: Any
) -> Outcome:
    """`other` is None if the pod of rank 1 is gone."""
    facts: dict[str, Any] = {"exit_code": 1, **own}
    pods = [make_pod(job, 0, **facts)]
    if other is not None:
        pods.append(make_pod(job, 1, phase=PodPhase.FAILED, **other))
    lost = known.pop("lost", frozenset[str]())
    return judge(job, tuple(pods), lost, Circumstances(job.status.stop, **known))


def stopped(reason: str) -> GPUJob:
    return with_status(GANG, stop=StopReason(reason, "because", after(30)))


@pytest.mark.parametrize("other", [EVICTED, DRAINED, REBOOTED])
@pytest.mark.parametrize(
    "own",
    [
        {"termination": said(NCCL)},
        {"termination": said(NCCL, step=40)},
        {
            "exit_code": 134,
            "termination_text": "terminate called after throwing an instance of c10",
        },
        {"termination_text": "RuntimeError: [gloo] Connection closed by peer [10.0.0.7]:4242"},
        {"termination_text": ""},
    ],
)
def test_an_error_of_the_network_beside_an_end_from_outside_is_an_interruption(
    other: dict[str, Any], own: dict[str, Any]
) -> None:
    assert judged(other, own).end is AttemptEnd.INTERRUPTED


LAUNCHERS = (
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
    "Traceback (most recent call last):\n  File '/usr/bin/torchrun', line 8, in <module>\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nx.py FAILED\n"
    "Root Cause (first observed failure):\n  exitcode  : -6 (pid: 77)",
    "Traceback (most recent call last):\n  File '/usr/bin/accelerate', line 8, in <module>\n"
    "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.",
    "[2026-11-28 10:00:00] [ERROR] [launch.py:325:sigkill_handler] exits with return code = 1",
    "[rank: 1] Child process with PID 77 terminated with code 1. Terminating all others",
)


@pytest.mark.parametrize("log", LAUNCHERS)
def test_a_launcher_that_names_no_error_adds_none(log: str) -> None:
    assert judged(DRAINED, {"termination_text": log}).end is AttemptEnd.INTERRUPTED
    own = f"Traceback (most recent call last):\nValueError: label 1001 is out of range\n{log}"
    assert judged(DRAINED, {"termination_text": own}).end is AttemptEnd.FAILED


@pytest.mark.parametrize(
    "log",
    [
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "horovod.common.exceptions.HorovodInternalError: Operation has been shut down.",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly.\nThe actor is dead.",
        "RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    ],
)
def test_the_words_of_libraries_for_a_lost_process(log: str) -> None:
    assert judged(DRAINED, {"termination_text": log}).end is AttemptEnd.INTERRUPTED


def test_the_node_of_the_other_worker_counts_as_lost() -> None:
    outcome = judged(None, {"termination": said(NCCL)}, lost=frozenset({"n1"}))
    assert (outcome.end, outcome.lost_node) == (AttemptEnd.INTERRUPTED, "n1")


def test_a_failure_whose_pod_is_gone_is_judged_alike() -> None:
    """The status keeps it while the other worker is awaited."""
    job = with_status(
        stopped("WorkerEnded"), failure=JobFailure(FailureClass.UNKNOWN, f"worker 0: {NCCL}")
    )
    other = make_pod(job, 1, phase=PodPhase.FAILED, exit_code=255, reason="Unknown")
    assert judge(job, (other,)).end is AttemptEnd.INTERRUPTED
    own = make_pod(job, 1, phase=PodPhase.FAILED, exit_code=143, deletion_at=after(40))
    assert judge(job, (own,)).end is AttemptEnd.FAILED


def test_a_node_that_is_about_to_go_ends_its_worker() -> None:
    outcome = judged(
        {"exit_code": 143}, {"termination": said(NCCL)}, leaving_nodes=frozenset({"n1"})
    )
    assert outcome.end is AttemptEnd.INTERRUPTED
    assert outcome.ended_by == "node n1 is about to go"


@pytest.mark.parametrize(
    "own",
    [
        {"termination": said("ValueError: label 1001 is out of range", step=40)},
        {"termination": said(NCCL, kind=FailureClass.OUT_OF_MEMORY)},
        {"termination": said("ModuleNotFoundError: No module named 'x'")},
        {"exit_code": 137, "reason": "OOMKilled"},
    ],
)
def test_an_error_of_its_own_stays_a_failure(own: dict[str, Any]) -> None:
    assert judged(EVICTED, own).end is AttemptEnd.FAILED


@pytest.mark.parametrize("other", [{"exit_code": 143}, {"exit_code": 0}, {"exit_code": 1}])
def test_without_an_end_from_outside_it_is_a_failure(other: dict[str, Any]) -> None:
    assert judged(other, {"termination": said(NCCL)}).end is AttemptEnd.FAILED


def test_the_operators_own_deletion_explains_nothing() -> None:
    """The first worker ended, and the operator deleted the pod of the other one."""
    other = {"exit_code": 143, "deletion_at": after(40)}
    own = {"termination": said(NCCL)}
    assert judged(other, own, stopped("WorkerEnded")).end is AttemptEnd.FAILED
    lost = {**other, "disruption": "DeletionByPodGC"}
    assert judged(lost, own, stopped("WorkerEnded")).end is AttemptEnd.INTERRUPTED


@pytest.mark.parametrize("reason", ["Preempted", "Evicted", "NodeReclaimed", "Suspended"])
def test_a_stop_that_came_first_explains_it(reason: str) -> None:
    other = {"exit_code": 143, "deletion_at": after(40)}
    assert judged(other, {"termination": said(NCCL)}, stopped(reason)).end is AttemptEnd.INTERRUPTED
    own = {"termination": said("ValueError: label 1001 is out of range", step=40)}
    assert judged(other, own, stopped(reason)).end is AttemptEnd.FAILED


@pytest.mark.parametrize(
    ("own", "kind", "words"),
    [
        (
            {"termination": said("ValueError: label 1001 is out of range", step=40)},
            FailureClass.USER_ERROR,
            "label 1001",
        ),
        (
            {"termination": said("CUDA out of memory", kind=FailureClass.OUT_OF_MEMORY)},
            FailureClass.OUT_OF_MEMORY,
            "CUDA out of memory",
        ),
        (
            {"exit_code": 137, "reason": "OOMKilled"},
            FailureClass.HOST_OUT_OF_MEMORY,
            "worker 0 was killed for host memory",
        ),
        (
            {"termination_text": "ModuleNotFoundError: No module named 'flash_attn'"},
            FailureClass.USER_ERROR,
            "flash_attn",
        ),
    ],
)
@pytest.mark.parametrize("peer", [{"termination": said(NCCL, step=40)}, {"exit_code": 134}])
def test_the_cause_is_no_error_of_the_network_whatever_the_clocks_show(
    own: dict[str, Any], kind: FailureClass, words: str, peer: dict[str, Any]
) -> None:
    """The peer lost its connection, and its container ended first, by another node's clock."""
    outcome = judged(
        {"exit_code": 1, "finished_at": after(60), **peer}, {"finished_at": after(64), **own}
    )
    assert outcome.failure is not None
    assert (outcome.end, outcome.failure.failure_class) == (AttemptEnd.FAILED, kind)
    assert words in outcome.failure.message


def test_the_cause_is_kept_after_its_pod_is_gone() -> None:
    """The peer lost its connection and is still there."""
    failure = JobFailure(FailureClass.USER_ERROR, "ValueError: label 1001 is out of range")
    job = with_status(stopped("WorkerEnded"), failure=failure)
    peer = make_pod(job, 1, exit_code=1, termination=said(NCCL, step=40), deletion_at=after(40))
    outcome = judge(job, (peer,))
    assert (outcome.end, outcome.failure, outcome.step) == (AttemptEnd.FAILED, failure, 40)


@pytest.mark.parametrize("phase", [PodPhase.SUCCEEDED, PodPhase.FAILED])
def test_a_worker_that_was_evicted_and_ended_with_0_is_lost_to_the_others(phase: PodPhase) -> None:
    """Its script saves on SIGTERM and returns."""
    peer = make_pod(GANG, 1, phase=phase, disruption="EvictionByEvictionAPI")
    own = make_pod(GANG, 0, exit_code=1, termination=said(NCCL, step=40))
    assert judge(GANG, (own, replace(peer, exit_code=0))).end is AttemptEnd.INTERRUPTED
    last = make_report(step=1000, steps_total=1000, phase=WorkerPhase.FINISHED)
    done = replace(peer, exit_code=0, termination=last)
    assert judge(GANG, (own, done)).end is AttemptEnd.FAILED
