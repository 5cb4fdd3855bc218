"""Whether a worker that ended with 0 was done: the table of docs/design/0026."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_api.report import FailureClass, Report, WorkerPhase
from gpujob_api.settings import Task
from gpujob_operator.decide.lifecycle.done import Circumstances
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome, judge
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.model.snapshot import NodeView, PodPhase, PodView, Taint
from gpujob_operator.decide.model.workers import with_pod_uids
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_report,
    make_snapshot,
    placed,
    received,
    running,
    statuses,
    with_status,
)

pytestmark = pytest.mark.promise("I5")

JOB = running(make_job())
STOP = StopReason("Preempted", "stopped for team/other", after(30))

# What is known of an end from outside, beside exit code 0.
OUTSIDE: dict[str, dict[str, Any]] = {
    "evicted": {"reason": "Evicted", "phase": PodPhase.FAILED},
    "evicted and Succeeded": {"reason": "Evicted"},
    "shutdown": {"reason": "Terminated"},
    "admission": {"reason": "Preempting"},
    "deadline": {"reason": "DeadlineExceeded"},
    "deleted": {"deletion_at": after(30)},
    "eviction API": {"disruption": "EvictionByEvictionAPI"},
    "taint": {"disruption": "DeletionByTaintManager", "deletion_at": after(30)},
    "kube-scheduler": {"disruption": "PreemptionByScheduler", "deletion_at": after(30)},
    "pod GC": {"disruption": "DeletionByPodGC"},
}
# The worker's last words, and whether they prove the end against that.
WORDS: dict[str, tuple[Report | None, bool]] = {
    "nothing": (None, False),
    "finished": (make_report(step=40, phase=WorkerPhase.FINISHED), False),
    "40 of 1000": (make_report(step=40, steps_total=1000, phase=WorkerPhase.FINISHED), False),
    "training": (make_report(step=40, steps_total=1000), False),
    "no steps": (make_report(step=0, steps_total=0), False),
    "1000 of 1000": (make_report(step=1000, steps_total=1000, phase=WorkerPhase.FINISHED), True),
    # Another loop may follow.
    "1000 of 1000 calls": (
        make_report(step=1000, steps_total=1000, task=Task.INFERENCE, phase=WorkerPhase.FINISHED),
        False,
    ),
    "asked at the last": (
        make_report(step=1000, steps_total=1000, phase=WorkerPhase.DRAINING),
        True,
    ),
}


def ended(job: GPUJob = JOB, around: Circumstances | None = None, **facts: Any) -> Outcome:
    """Of one worker that ended with 0."""
    phase = facts.pop("phase", PodPhase.SUCCEEDED)
    return judge(job, (replace(make_pod(job, exit_code=0, **facts), phase=phase),), around=around)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("outside", OUTSIDE)
def test_against_an_end_from_outside_only_the_last_step_counts(outside: str, words: str) -> None:
    """A script that saves on SIGTERM ends with 0 wherever it is."""
    report, proves = WORDS[words]
    outcome = ended(termination=report, **OUTSIDE[outside])
    assert (outcome.end is AttemptEnd.SUCCEEDED) is proves
    if not proves:
        own = outside == "deadline"
        assert outcome.end is (AttemptEnd.FAILED if own else AttemptEnd.INTERRUPTED)


@pytest.mark.parametrize("words", sorted(set(WORDS) - {"training"}))
@pytest.mark.parametrize("phase", [PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.RUNNING])
def test_a_worker_that_nobody_ended_was_done(words: str, phase: PodPhase) -> None:
    """It may end before the steps that it announced, and beside a container that failed."""
    assert ended(termination=WORDS[words][0], phase=phase).end is AttemptEnd.SUCCEEDED


@pytest.mark.parametrize("phase", [WorkerPhase.TRAINING, WorkerPhase.TUNING])
def test_a_worker_that_broke_off_before_its_steps_was_not_done(phase: WorkerPhase) -> None:
    """`os._exit(0)` in a handler of its own, for a signal of which no pod says anything."""
    outcome = ended(termination=make_report(step=40, steps_total=1000, phase=phase))
    assert outcome.end is AttemptEnd.INTERRUPTED
    assert "ended with 0 before its last step" in outcome.ended_by


def test_a_loop_of_calls_may_end_before_its_loader() -> None:
    left = make_report(step=40, steps_total=1000, task=Task.INFERENCE)
    assert ended(termination=left).end is AttemptEnd.SUCCEEDED


def test_a_worker_may_make_its_last_steps_after_its_last_report() -> None:
    """Reports come every few seconds, and `os._exit(0)` at the end leaves no other."""
    assert ended(termination=make_report(step=900, steps_total=1000)).end is AttemptEnd.SUCCEEDED


@pytest.mark.parametrize(("age_seconds", "is_done"), [(5, False), (60, False), (80, True)])
def test_a_report_that_was_received_counts_for_what_could_be_done_since(
    age_seconds: float, is_done: bool
) -> None:
    """The script wrote over the termination message; 960 steps of 0.1 s were left."""
    report = make_report(step=40, steps_total=1000)
    around = Circumstances(report=report, report_age_seconds=age_seconds)
    outcome = ended(around=around, termination_text="bye")
    assert (outcome.end is AttemptEnd.SUCCEEDED) is is_done
    finished = replace(report, phase=WorkerPhase.FINISHED)
    assert ended(around=replace(around, report=finished)).end is AttemptEnd.SUCCEEDED
    assert ended(around=Circumstances(report=report)).end is AttemptEnd.SUCCEEDED, "nobody knows"


def test_a_worker_that_heard_a_signal_says_so_itself() -> None:
    """Nobody else may: a person sent it, or a system that shuts down."""
    heard = make_report(step=40, steps_total=1000, phase=WorkerPhase.DRAINING)
    assert ended(termination=heard).end is AttemptEnd.INTERRUPTED


@pytest.mark.parametrize("step", [40, 1000])
def test_the_last_report_counts_where_the_script_wrote_over_it(step: int) -> None:
    report = make_report(step=step, steps_total=1000)
    around = Circumstances(report=report)
    outcome = ended(around=around, termination_text="bye", deletion_at=after(30))
    assert (outcome.end is AttemptEnd.SUCCEEDED) is (step == 1000)
    older = Circumstances(report=replace(report, attempt=7, step=1000))
    assert ended(around=older, deletion_at=after(30)).end is AttemptEnd.INTERRUPTED


def test_a_node_that_is_about_to_go_ends_workers_that_nobody_deletes() -> None:
    """Also before the stop of the attempt is written."""
    leaving = Circumstances(leaving_nodes=frozenset({"n0"}))
    assert ended(around=leaving).end is AttemptEnd.INTERRUPTED
    elsewhere = Circumstances(leaving_nodes=frozenset({"n1"}))
    assert ended(around=elsewhere).end is AttemptEnd.SUCCEEDED


@pytest.mark.parametrize("has_node", [True, False])
def test_a_node_that_is_gone_when_the_end_is_seen_may_have_ended_the_worker(
    *, has_node: bool
) -> None:
    """The operator was away from before the node's sign until after its end."""
    pod = make_pod(JOB, exit_code=0, phase=PodPhase.SUCCEEDED)
    node = "n0" if has_node else "n1"
    gpu_nodes = [make_gpu_node(node, make_gpu())]
    snapshot = make_snapshot(JOB, pods=[pod], gpu_nodes=gpu_nodes, nodes=(make_node(node),))
    status = statuses(plan(snapshot, after(60)).items)[JOB.metadata.name]
    assert (status.phase is JobPhase.SUCCEEDED) is has_node
    text = " ".join(one.message for one in status.conditions)
    assert ("worker 0 ended with 0 on node n0, which is gone" in text) is not has_node


def test_a_shell_hides_that_its_program_was_killed_for_memory() -> None:
    """`python train.py; echo done`: the container's reason tells it, its code does not."""
    outcome = ended(reason="OOMKilled")
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.HOST_OUT_OF_MEMORY
    cut = make_report(step=40, steps_total=1000)
    assert ended(reason="OOMKilled", termination=cut).end is AttemptEnd.FAILED
    caught = make_report(step=40, phase=WorkerPhase.FINISHED)
    assert ended(reason="OOMKilled", termination=caught).end is AttemptEnd.SUCCEEDED


@pytest.mark.parametrize("outside", set(OUTSIDE) - {"deadline"})
@pytest.mark.parametrize("code", [1, 2, 130, 137, 255])
def test_any_code_after_an_end_from_outside_is_an_interruption(outside: str, code: int) -> None:
    facts: dict[str, Any] = {**OUTSIDE[outside], "phase": PodPhase.FAILED}
    pod = make_pod(JOB, exit_code=code, **facts)
    assert judge(JOB, (pod,)).end is AttemptEnd.INTERRUPTED


@pytest.mark.parametrize("code", [134, 139])
def test_nobody_asks_a_worker_to_crash(code: int) -> None:
    pod = make_pod(JOB, exit_code=code, deletion_at=after(30))
    assert judge(JOB, (pod,)).end is AttemptEnd.FAILED


def test_it_is_said_who_ended_the_worker() -> None:
    low = "The node was low on resource: ephemeral-storage."
    outcome = ended(reason="Evicted", message=low)
    assert outcome.ended_by == (
        f"pod job-1-0 was ended from outside (Evicted: {low}) before its last step"
    )
    assert "(PreemptionByScheduler)" in ended(**OUTSIDE["kube-scheduler"]).ended_by


# -- a gang

GANG = running(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
NODES = (make_node("n0"), make_node("n1"))


def decided(
    job: GPUJob, *pods: PodView, at: float = 10.0, nodes: tuple[NodeView, ...] = NODES, **more: Any
) -> Any:
    gpus = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}"), at=at) for n in (0, 1)]
    snapshot = make_snapshot(job, pods=pods, gpu_nodes=gpus, nodes=nodes, **more)
    return plan(snapshot, after(at))


def said(job: GPUJob, *pods: PodView, **more: Any) -> GPUJob:
    """The job once what was decided is written."""
    found = statuses(decided(job, *pods, **more).items)
    return replace(job, status=found.get(job.metadata.name, job.status))


def known(job: GPUJob, *pods: PodView) -> GPUJob:
    return replace(job, status=with_pod_uids(job.status, pods))


@pytest.mark.parametrize("at", [10.0, 300.0])
def test_a_rank_that_is_done_stays_done_without_its_pod(at: float) -> None:
    """The operator is another one, and a person or the garbage collector took the pod."""
    pods = make_pod(GANG, 0, exit_code=0), make_pod(GANG, 1)
    job = said(known(GANG, *pods), *pods)
    assert job.status.placement is not None
    assert [one.done for one in job.status.placement.workers] == [True, None]
    assert said(job, pods[1], at=at).status.phase is JobPhase.RUNNING
    last = make_pod(GANG, 1, exit_code=0)
    assert said(job, last, at=at).status.phase is JobPhase.SUCCEEDED
    assert said(job, at=at).status.phase is JobPhase.PENDING, "of the other nobody knows"


def test_what_happens_to_the_pod_of_a_rank_that_is_done_changes_nothing() -> None:
    done = make_pod(GANG, 0, exit_code=0)
    job = said(GANG, done, make_pod(GANG, 1))
    evicted = replace(done, reason="Evicted", deletion_at=after(30))
    assert said(job, evicted, make_pod(GANG, 1)).status.phase is JobPhase.RUNNING
    end = said(job, evicted, make_pod(GANG, 1, exit_code=0))
    assert end.status.phase is JobPhase.SUCCEEDED


def test_a_rank_that_was_done_before_the_others_ran_gets_no_second_pod() -> None:
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    pods = make_pod(job, 0, exit_code=0), make_pod(job, 1, phase=PodPhase.PENDING)
    job = said(known(job, *pods), *pods)
    found = decided(job, pods[1])
    assert not [one for one in found.items if isinstance(one, CreatePod)]
    job = said(job, make_pod(job, 1))
    assert job.status.phase is JobPhase.RUNNING
    assert said(job, make_pod(job, 1, exit_code=0)).status.phase is JobPhase.SUCCEEDED


def test_a_rank_that_was_done_before_the_others_have_pods_ends_no_attempt() -> None:
    """The pod of rank 1 is created late: a quota was full, or the API server was slow."""
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    found = decided(job, make_pod(job, 0, exit_code=0))
    status = statuses(found.items)["job"]
    assert status.phase is JobPhase.STARTING
    assert status.placement is not None
    assert [one.done for one in status.placement.workers] == [True, None]
    assert [one.rank for one in found.items if isinstance(one, CreatePod)] == [1]
    failed = decided(job, make_pod(job, 0, exit_code=1))
    assert not [one for one in failed.items if isinstance(one, CreatePod)]


def test_the_next_attempt_needs_all_of_its_ranks() -> None:
    job = said(GANG, make_pod(GANG, 0, exit_code=0), make_pod(GANG, 1))
    again = said(job, make_pod(job, 1, exit_code=143))
    assert (again.status.phase, again.status.placement) == (JobPhase.PENDING, None)


def test_a_rank_that_was_ended_from_outside_stops_the_others() -> None:
    """They would wait for it until they hang."""
    evicted = make_pod(GANG, 0, exit_code=0, reason="Evicted")
    job = said(GANG, evicted, make_pod(GANG, 1))
    assert job.status.stop is not None
    assert job.status.stop.reason == "WorkerEnded"
    rest = make_pod(GANG, 1, exit_code=0, deletion_at=after(40))
    assert said(job, evicted, rest).status.phase is JobPhase.PENDING


def test_what_a_rank_failed_with_outlives_its_pod() -> None:
    """The others use their grace meanwhile, and somebody tidies up."""
    line = "ModuleNotFoundError: No module named 'transformers'"
    fell = make_pod(GANG, 0, exit_code=1, termination_text=line)
    job = said(GANG, fell, make_pod(GANG, 1))
    left = make_pod(GANG, 1, exit_code=143, deletion_at=after(40))
    failed = said(job, left)
    assert failed.status.phase is JobPhase.FAILED
    assert failed.status.failure is not None
    assert line in failed.status.failure.message
    interrupted = make_pod(GANG, 0, exit_code=143)
    stopping = said(with_status(job, phase=JobPhase.RUNNING, stop=None), interrupted)
    assert said(stopping, left).status.phase is not JobPhase.FAILED, "of this attempt it is none"


def test_a_single_worker_needs_no_memory_of_its_end() -> None:
    """Its end is judged at once: nothing more is written."""
    job = said(JOB, make_pod(JOB, exit_code=0))
    assert job.status.phase is JobPhase.SUCCEEDED
    assert job.status.placement is not None
    assert job.status.placement.workers[0].done is None


# -- facts that come in any order


def test_an_end_that_is_seen_with_its_nodes_notice_is_no_end() -> None:
    """The stop of the attempt could not be written in time."""
    deadline = int((after(40)).timestamp())
    taint = Taint("gpujob.dev/reclaim", "NoSchedule", str(deadline))
    nodes = make_node("n0", taints=(taint,)), NODES[1]
    assert said(JOB, make_pod(JOB, exit_code=0), nodes=nodes).status.phase is JobPhase.PENDING
    report = make_report(step=40, steps_total=40)
    done = said(JOB, make_pod(JOB, exit_code=0), nodes=nodes, reports=(received(JOB, report),))
    assert done.status.phase is JobPhase.SUCCEEDED


@pytest.mark.parametrize("before_seconds", [5, 2000])
def test_the_report_before_an_end_counts_while_it_is_fresh(before_seconds: float) -> None:
    fresh = received(JOB, make_report(step=40, steps_total=1000), at=3000 - before_seconds)
    job = said(JOB, make_pod(JOB, exit_code=0), at=3000, reports=(fresh,))
    assert (job.status.phase is JobPhase.SUCCEEDED) is (before_seconds == 2000)


@pytest.mark.parametrize("stop", [None, STOP, replace(STOP, reason="Evicted")])
def test_a_deletion_counts_whether_its_stop_was_written_or_not(stop: StopReason | None) -> None:
    phase = JobPhase.RUNNING if stop is None else JobPhase.STOPPING
    job = running(make_job(), phase=phase, stop=stop)
    pod = make_pod(job, exit_code=0, deletion_at=after(30))
    assert said(job, pod).status.phase is JobPhase.PENDING


def test_a_pod_that_is_gone_is_judged_by_what_was_seen_of_it() -> None:
    pod = make_pod(JOB)
    job = said(known(JOB, pod), replace(pod, deletion_at=after(30)))
    assert job.status.stop is not None
    assert job.status.stop.reason == "Evicted"
    assert said(job, at=20).status.phase is JobPhase.PENDING


def test_times_prove_nothing() -> None:
    """A node's clock may be hours behind that of the API server, which asked it to end the pod."""
    long_before = after(0) - timedelta(hours=2)
    outcome = ended(finished_at=long_before, deletion_at=after(30))
    assert outcome.end is AttemptEnd.INTERRUPTED
