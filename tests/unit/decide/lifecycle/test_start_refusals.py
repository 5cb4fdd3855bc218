"""What refuses to start an attempt, how long that is waited for, and what follows."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.report import FailureClass
from gpujob_api.start_refusal import START_REFUSALS_MAX, StartRefusal
from gpujob_operator.decide.lifecycle.attempt import advance
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.start_refusals import (
    NODE_AVOIDED_SECONDS,
    Refusal,
    pause_seconds,
    with_refusal,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.snapshot import PodPhase, PodView, RefusedPod
from gpujob_operator.decide.model.workers import job_pods_of
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_snapshot,
    placed,
    running,
    statuses,
    with_status,
)
from tests.harness.world import World

CONFIGURATION = Configuration(retry_backoff_seconds=10, retry_backoff_max_seconds=40)
DEFAULTS = Configuration()


def step(job: GPUJob, *pods: PodView, at: float = 10.0, **seen: Any) -> NextStep:
    return advance(
        job, JobInputs(job_pods=job_pods_of(job, pods), **seen), CONFIGURATION, after(at)
    )


def waiting(job: GPUJob, rank: int = 0, **fields: Any) -> PodView:
    """A pod that does not run yet; kube-scheduler found its node at T0."""
    defaults: dict[str, Any] = {"phase": PodPhase.PENDING, "scheduled_since": T0, "node": "n0"}
    return replace(make_pod(job, rank=rank), **{**defaults, **fields})


def unschedulable(job: GPUJob, rank: int = 0, **fields: Any) -> PodView:
    words = {"reason": "Unschedulable", "message": "volume node affinity conflict"}
    return waiting(job, rank, node=None, **{**words, **fields})


def refused(job: GPUJob, rank: int = 0, attempt: int = 1) -> RefusedPod:
    return RefusedPod(job.metadata.uid, attempt, rank, "exceeded quota: compute")


def stop_of(found: NextStep) -> str:
    return found.status.stop.reason if found.status.stop is not None else ""


def test_a_pod_for_which_kube_scheduler_preempts_others_waits_for_their_end() -> None:
    """They have a grace of minutes. Else each try would end somebody's pods for nothing."""
    job = placed(make_job())
    assert stop_of(step(job, unschedulable(job), at=30)) == "Unschedulable"
    last = CONFIGURATION.start_timeout_seconds
    pod = unschedulable(job, preempts=True)
    assert stop_of(step(job, pod, at=last - 1)) == ""
    assert stop_of(step(job, pod, at=last + 1)) == "Unschedulable"


def test_a_pod_that_the_api_server_refuses_ends_the_attempt_at_once() -> None:
    job = placed(make_job())
    found = step(job, refused_pods=(refused(job),))
    assert stop_of(found) == "PodRejected"
    assert found.status.stop is not None
    assert "worker 0: exceeded quota" in found.status.stop.message
    assert [one.node for one in found.status.start_refusals] == [None]
    (event,) = found.events
    assert event.reason == "StoppingPodRejected"
    assert "worker 0: exceeded quota" in event.message


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_refusal_of_another_attempt_is_none(attempt: int) -> None:
    job = placed(make_job())
    assert stop_of(step(job, refused_pods=(refused(job, attempt=attempt),))) == ""


def test_a_refusal_of_a_pod_that_is_there_is_none() -> None:
    """The answer to an earlier try came late, or was lost."""
    job = placed(make_job())
    assert stop_of(step(job, waiting(job), refused_pods=(refused(job),))) == ""


@pytest.mark.parametrize("pulled_seconds", [300.0, 3000.0], ids=["in-time", "after-the-limit"])
@pytest.mark.parametrize("reason", ["ErrImagePull", "CreateContainerError"])
def test_what_the_kubelet_says_after_a_long_pull_is_waited_for_as_long(
    reason: str, pulled_seconds: float
) -> None:
    """Its second try may go well. The time to start, which the pull has used up, is not the job's
    error meanwhile."""
    job = placed(make_job())
    pod = waiting(job, reason=reason, reason_since=after(pulled_seconds))
    before = step(job, pod, at=pulled_seconds + 29)
    assert stop_of(before) == ""
    assert before.next_seconds == 1
    found = step(job, pod, at=pulled_seconds + 30)
    assert stop_of(found) == "CannotStart"
    assert [one.node for one in found.status.start_refusals] == ["n0"]


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"reason": "CreateContainerConfigError"}, 30),
        ({"reason": "ImagePullBackOff"}, 30),
        ({"reason": "InvalidImageName"}, 30),
        ({"reason": "PreStartHookError"}, 30),
        ({"sandbox_ready": False}, 45),
    ],
    ids=str,
)
def test_a_pod_that_cannot_start_is_waited_for_less_than_a_minute(
    fields: dict[str, Any], seconds: float
) -> None:
    job = placed(make_job())
    pod = waiting(job, **fields)
    before = step(job, pod, at=seconds - 1)
    assert stop_of(before) == ""
    assert before.next_seconds == 1
    assert stop_of(step(job, pod, at=seconds)) == "CannotStart"


def test_kube_scheduler_is_given_a_moment() -> None:
    job = placed(make_job())
    before = step(job, unschedulable(job), at=4)
    assert (stop_of(before), before.next_seconds) == ("", 1)
    found = step(job, unschedulable(job), at=5)
    assert stop_of(found) == "Unschedulable"
    (known,) = found.status.start_refusals
    assert (known.node, known.count, known.until) == ("n0", 1, after(65))


def test_no_node_that_refused_the_job_is_free_again_before_the_next_attempt() -> None:
    """The cheapest of them would be tried for ever, and no other."""
    others = tuple(StartRefusal("Unschedulable", "", 3, after(9), node) for node in (None, "n7"))
    job = with_status(placed(make_job()), start_refusals=others)
    found = step(job, unschedulable(job), at=5)
    pause = pause_seconds(found.status.start_refusals, CONFIGURATION)
    assert pause == 40
    avoided = {one.node: one.until for one in found.status.start_refusals if one.node is not None}
    least = after(5 + pause + NODE_AVOIDED_SECONDS)
    assert least < avoided["n7"] < avoided["n0"] < least + timedelta(seconds=30), "in their turns"


def test_the_node_is_that_of_the_worker_that_is_refused() -> None:
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    found = step(job, waiting(job), unschedulable(job, rank=1), at=5)
    assert [one.node for one in found.status.start_refusals] == ["n1"]


@pytest.mark.parametrize(("reason", "seconds"), [("CannotStart", 360), ("Unschedulable", 45)])
def test_volumes_that_take_their_time_are_given_more_of_it_each_time(
    reason: str, seconds: float
) -> None:
    """A refusal by kube-scheduler says nothing of volumes."""
    known = StartRefusal(reason, "", 3, T0, "n9")
    job = with_status(placed(make_job()), start_refusals=(known,))
    pod = waiting(job, sandbox_ready=False)
    assert stop_of(step(job, pod, at=seconds - 1)) == ""
    assert stop_of(step(job, pod, at=seconds)) == "CannotStart"


def test_images_may_be_pulled_for_an_hour_and_containers_may_start_after_that() -> None:
    job = placed(make_job())
    pulls = waiting(job, pulls_images=True)
    assert stop_of(step(job, pulls, at=3599)) == ""
    late = step(job, pulls, at=3600)
    assert stop_of(late) == "CannotStart"
    assert late.status.stop is not None
    assert "were not pulled on n0 within 3600 s" in late.status.stop.message
    assert [one.node for one in late.status.start_refusals] == ["n0"]
    starts = waiting(job, last_change_at=after(3000))
    assert stop_of(step(job, starts, at=3600)) == ""
    assert stop_of(step(job, starts, at=3601)) == "StartTimeout"
    assert step(job, make_pod(job), at=3500).status.phase is JobPhase.RUNNING


def test_kube_scheduler_may_try_again_after_an_error_of_its_own() -> None:
    job = placed(make_job())
    pod = unschedulable(job, reason="SchedulerError", message="binding volumes: timed out")
    assert stop_of(step(job, pod, at=29)) == ""
    found = step(job, pod, at=30)
    assert stop_of(found) == "Unschedulable"
    (known,) = found.status.start_refusals
    assert known.node == "n0"
    assert "binding volumes: timed out" in known.message


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("", "", "kube-scheduler has not looked at it"),
        ("SchedulingGated", "waits for quota", "SchedulingGated: waits for quota"),
    ],
)
def test_a_kube_scheduler_that_says_nothing_is_waited_for_and_is_nobodys_error(
    reason: str, message: str, said: str
) -> None:
    job = placed(make_job())
    pod = unschedulable(job, reason=reason, message=message)
    assert stop_of(step(job, pod, at=599)) == ""
    stopped = step(job, pod, at=600)
    assert stop_of(stopped) == "Unschedulable"
    assert stopped.status.stop is not None
    assert said in stopped.status.stop.message
    assert [one.node for one in stopped.status.start_refusals] == [None], "no node refused it"
    found = step(replace(job, status=stopped.status), at=601).status
    assert found.phase is JobPhase.PENDING
    assert found.counters == job.status.counters


@pytest.mark.parametrize("own", [{"schedulerName": "typo"}, {"schedulingGates": [{"name": "a"}]}])
def test_a_scheduler_or_a_gate_of_the_jobs_own_is_its_own_error(own: dict[str, Any]) -> None:
    """Else it would hold GPUs again and again, for ever."""
    job = make_job()
    template = {"spec": {**job.spec.template["spec"], **own}}
    job = placed(replace(job, spec=replace(job.spec, template=template)))
    pod = unschedulable(job, reason="", message="")
    assert stop_of(step(job, pod, at=600)) == ""
    assert stop_of(step(job, pod, at=601)) == "StartTimeout"


def test_a_kubelet_that_says_nothing_is_waited_for_and_is_nobodys_error() -> None:
    job = placed(make_job())
    pod = waiting(job, reason="", message="")
    assert stop_of(step(job, pod, at=599)) == ""
    stopped = step(job, pod, at=600)
    assert stop_of(stopped) == "CannotStart"
    assert [one.node for one in stopped.status.start_refusals] == ["n0"]


def test_the_seconds_of_a_refusal_are_those_that_were_waited_for() -> None:
    """A gang of which one worker's images are pulled waits as long for all."""
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    pods = waiting(job, pulls_images=True), unschedulable(job, 1, reason="", message="")
    stopped = step(job, *pods, at=3600)
    assert stopped.status.stop is not None
    assert "was not scheduled within 3600 s" in stopped.status.stop.message


def test_a_pod_that_is_never_created_is_nobodys_error() -> None:
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    first = waiting(job)
    assert stop_of(step(job, first, at=599)) == ""
    stopped = step(job, first, at=600)
    assert stop_of(stopped) == "PodRejected"
    assert stopped.status.stop is not None
    assert "the pod of worker 1 was not created within 600 s" in stopped.status.stop.message


def test_an_attempt_whose_node_is_gone_before_it_ran_is_no_error() -> None:
    job = placed(make_job())
    stopped = step(job, lost_nodes=frozenset({"n0"}))
    assert (stop_of(stopped), stopped.creates) == ("NodeGone", ())
    found = step(replace(job, status=stopped.status), lost_nodes=frozenset({"n0"}))
    assert found.status.phase is JobPhase.PENDING
    assert (found.status.counters.node_lost, found.status.counters.errors) == (1, 0)


def ended(job: GPUJob, reason: str, words: str, code: int | None = 128) -> PodView:
    return replace(
        make_pod(job), phase=PodPhase.FAILED, exit_code=code, reason=reason, termination_text=words
    )


def test_a_command_that_is_not_in_the_image_is_the_users_error() -> None:
    job = placed(make_job())
    words = 'exec: "gpujob-run": executable file not found in $PATH'
    found = step(job, ended(job, "StartError", words))
    assert found.status.phase is JobPhase.FAILED
    assert found.status.failure is not None
    assert found.status.failure.failure_class is FailureClass.USER_ERROR
    assert words in found.status.failure.message


@pytest.mark.parametrize(
    ("reason", "code"),
    [("StartError", 128), ("OutOfcpu", None), ("UnexpectedAdmissionError", None)],
)
def test_a_node_that_does_not_start_a_pod_is_avoided(reason: str, code: int | None) -> None:
    job = placed(make_job())
    found = step(job, ended(job, reason, "nvidia-container-cli: driver error", code))
    assert found.status.phase is JobPhase.PENDING
    assert found.status.counters == job.status.counters
    assert [one.node for one in found.status.start_refusals] == ["n0"]


@pytest.mark.parametrize(
    "reason", ["TopologyAffinityError", "SMTAlignmentError", "NodePorts", "Evicted", "AppArmor"]
)
def test_a_pod_that_its_kubelet_rejects_is_no_failure_of_the_job(reason: str) -> None:
    """The kubelet has more reasons in each release. Its message begins alike."""
    job = placed(make_job(retries=0))
    words = "Pod was rejected: Resources cannot be allocated with Topology locality"
    pod = replace(ended(job, reason, "", None), message=words, reason_is_of_pod=True)
    found = step(job, pod)
    assert found.status.phase is JobPhase.PENDING
    assert found.status.counters == job.status.counters
    (refusal,) = found.status.start_refusals
    assert (refusal.node, refusal.reason) == ("n0", "CannotStart")
    assert refusal.message.startswith(f"pod job-1-0 was not started on n0: {reason}: {words}")


def test_a_pod_that_ran_and_is_rejected_later_was_interrupted() -> None:
    """A node restarted, and its devices are not registered yet."""
    job = running(make_job())
    words = "Pod was rejected: Allocate failed due to no healthy devices present"
    pod = replace(
        ended(job, "UnexpectedAdmissionError", "", None), message=words, reason_is_of_pod=True
    )
    found = step(job, pod, at=3600.0).status
    assert (found.phase, found.counters.interruptions) == (JobPhase.PENDING, 1)
    assert (found.start_refusals, found.requeued_at) == ((), None)


def test_a_gang_of_which_a_worker_is_rejected_after_it_ran_was_interrupted() -> None:
    job = running(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    rejected = replace(
        make_pod(job, rank=1), phase=PodPhase.FAILED, reason="UnexpectedAdmissionError"
    )
    stopped = step(job, make_pod(job), rejected, at=3600.0)
    assert stop_of(stopped) == "Evicted"
    left = make_pod(job, exit_code=143)
    found = step(replace(job, status=stopped.status), left, rejected, at=3610.0).status
    assert (found.phase, found.counters.interruptions) == (JobPhase.PENDING, 1)
    assert (found.start_refusals, found.requeued_at) == ((), None)


def times_avoided(message: str, count: int) -> list[float]:
    """For how long the node is avoided after each refusal, in seconds."""
    job, found = make_job(), list[float]()
    for _ in range(count):
        again = with_status(placed(job, attempt=1), start_refusals=job.status.start_refusals)
        stopped = step(again, unschedulable(again, message=message))
        job = replace(job, status=step(replace(again, status=stopped.status)).status)
        (known,) = job.status.start_refusals
        found.append((known.until - after(10)).total_seconds())
    return found


@pytest.mark.parametrize(
    "message",
    [
        "0/9 nodes are available: 1 Too many pods, 8 node(s) didn't match",
        "0/9 nodes are available: 1 Insufficient cpu",
        "0/9 nodes are available: 1 Insufficient memory. preemption: 0/9 nodes are available",
    ],
)
def test_a_node_that_is_full_is_not_avoided_for_longer_each_time(message: str) -> None:
    """The next pod that ends there makes room. Pauses are longer each time, up to 40 s."""
    assert times_avoided(message, 5) == [60, 70, 80, 100, 100]
    assert times_avoided("1 Insufficient rdma/hca", 6) == [60, 120, 240, 480, 600, 600]
    assert times_avoided("1 Insufficient memory.example.com/x", 4) == [60, 120, 240, 480]


def test_the_only_node_is_tried_again_as_often_as_pauses_allow() -> None:
    """A secret is missing for twelve hours, and then it is there."""
    job = make_job()
    for _ in range(40):
        again = with_status(placed(job, attempt=1), start_refusals=job.status.start_refusals)
        refusal = Refusal("CannotStart", "secret not found", "n0", 0.0)
        status = with_refusal(again, refusal, DEFAULTS, after(10))
        job = with_status(job, start_refusals=status.start_refusals)
    (known,) = job.status.start_refusals
    pause = pause_seconds(job.status.start_refusals, DEFAULTS)
    assert pause == 600
    assert known.until == after(10 + pause + NODE_AVOIDED_SECONDS)


# -- pauses

OF_A_WEBHOOK = (StartRefusal("PodRejected", "no endpoints", 4, T0, None),)


def attempts(job: GPUJob, count: int, **seen: Any) -> list[float]:
    """The pauses after each of so many attempts that are refused."""
    pauses: list[float] = []
    for _ in range(count):
        again = with_status(placed(job, attempt=1), start_refusals=job.status.start_refusals)
        pods = (unschedulable(again),) if not seen else ()
        stopped = step(again, *pods, **seen)
        job = replace(job, status=step(replace(again, status=stopped.status)).status)
        assert job.status.next_attempt_at is not None
        pauses.append((job.status.next_attempt_at - after(10)).total_seconds())
        assert job.status.counters == again.status.counters
    return pauses


def test_pauses_double_up_to_a_limit_and_no_retry_is_used() -> None:
    job = make_job(retries=0)
    assert attempts(job, 5, refused_pods=(refused(job),)) == [10, 20, 40, 40, 40]


def test_another_node_is_tried_at_once_and_further_ones_after_pauses() -> None:
    assert attempts(make_job(), 4) == [0, 10, 20, 40]


def test_nodes_that_were_not_tried_before_are_tried_without_longer_pauses() -> None:
    """Of thirty nodes the last one may be in the zone of the job's volume."""
    once = [StartRefusal("Unschedulable", "", 1, T0, f"n{n}") for n in range(START_REFUSALS_MAX)]
    first = [pause_seconds(tuple(once[:count]), DEFAULTS) for count in (1, 2, 3, 10)]
    assert first == [0, 10, 10, 10]
    again = (*once[1:10], replace(once[0], count=2))
    assert pause_seconds(again, DEFAULTS) == 600, "each was tried"
    assert pause_seconds(tuple(once), DEFAULTS) == 600, "earlier ones are forgotten"
    anywhere = (*OF_A_WEBHOOK, once[0])
    assert pause_seconds(anywhere, DEFAULTS) == 160


def test_a_job_that_runs_forgets_what_refused_it_anywhere_and_the_length_of_pauses() -> None:
    known = (StartRefusal("PodRejected", "", 4, T0), StartRefusal("Unschedulable", "", 3, T0, "n1"))
    job = with_status(placed(make_job()), start_refusals=known)
    found = step(job, make_pod(job)).status
    assert [(one.node, one.count) for one in found.start_refusals] == [("n1", 1)]


def test_so_many_nodes_are_remembered() -> None:
    known = tuple(StartRefusal("x", "", 1, T0, f"n{n}") for n in range(1, START_REFUSALS_MAX + 1))
    job = with_status(placed(make_job()), start_refusals=known)
    nodes = [one.node for one in step(job, unschedulable(job)).status.start_refusals]
    assert nodes == [*(f"n{n}" for n in range(2, START_REFUSALS_MAX + 1)), "n0"]


# -- where it goes next


def refused_on(*nodes: str | None, seconds: float = 60.0) -> GPUJob:
    words = "node(s) had volume node affinity conflict"
    known = tuple(
        StartRefusal("Unschedulable", words, 1, T0 + timedelta(seconds=seconds), node)
        for node in nodes
    )
    return with_status(make_job("picky"), start_refusals=known)


def two_nodes(*jobs: GPUJob) -> Any:
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}"), at=60.0) for n in range(2)]
    return make_snapshot(*jobs, gpu_nodes=nodes)


@pytest.mark.parametrize(
    ("nodes", "at", "where"),
    [((), 0, "n0"), (("n0",), 59, "n1"), (("n0",), 60, "n0"), (("n0", "n1"), 60, "n0")],
)
def test_a_node_is_avoided_for_its_time(nodes: tuple[str, ...], at: float, where: str) -> None:
    found = statuses(plan(two_nodes(refused_on(*nodes)), after(at)).items)["picky"]
    assert found.placement is not None
    assert found.placement.workers[0].node == where


@pytest.mark.parametrize("words", ["no", "1 Too many pods", "1 Insufficient cpu"])
def test_of_many_nodes_each_is_tried_before_one_is_tried_again(words: str) -> None:
    """Whatever refused the job before, and however long it pauses."""
    job, at, tried = with_status(make_job("picky"), start_refusals=OF_A_WEBHOOK), 0.0, list[str]()
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(4)]
    while len(tried) < 3 * len(nodes):
        at += 5.0
        assert at < 10_000, tried
        seen = [replace(one, status=replace(one.status, observed_at=after(at))) for one in nodes]
        snapshot = make_snapshot(job, gpu_nodes=seen)
        found = statuses(plan(snapshot, after(at)).items).get("picky", job.status)
        if found.placement is None:
            continue
        tried.append(found.placement.workers[0].node)
        refusal = Refusal("Unschedulable", words, tried[-1], 0.0)
        refused = with_refusal(replace(job, status=found), refusal, DEFAULTS, after(at))
        job = with_status(job, attempt=found.attempt, start_refusals=refused.start_refusals)
        at += pause_seconds(refused.start_refusals, DEFAULTS)
    for first in range(0, len(tried), len(nodes)):
        assert sorted(tried[first : first + len(nodes)]) == ["n0", "n1", "n2", "n3"], tried


def test_a_gang_that_must_lie_apart_waits_for_the_node_that_it_avoids() -> None:
    """kube-scheduler takes one of its workers a node, and one of the two nodes is avoided."""
    avoided = StartRefusal("CannotStart", "no volume", 4, after(600.0), "n1")
    gang = with_status(make_job("gang", workers=2), start_refusals=(avoided,))
    gpus = [[make_gpu(f"GPU-{n}-{k}") for k in range(2)] for n in range(2)]
    at, tried = 0.0, list[set[str]]()
    while at < 3600 and {"n0", "n1"} not in tried:
        nodes = [make_gpu_node(f"n{n}", *of_node, at=at) for n, of_node in enumerate(gpus)]
        found = statuses(plan(make_snapshot(gang, gpu_nodes=nodes), after(at)).items).get("gang")
        if found is not None and found.placement is not None:
            tried.append({worker.node for worker in found.placement.workers})
            (node, *_) = tried[-1]
            refusal = Refusal("Unschedulable", "anti-affinity", node, 0.0, beside=(node,))
            refused = with_refusal(replace(gang, status=found), refusal, DEFAULTS, after(at))
            gang = with_status(gang, attempt=found.attempt, start_refusals=refused.start_refusals)
        at += 30.0
    assert tried[-1] == {"n0", "n1"}, tried
    assert len(tried) == 2, tried


def test_a_job_that_every_node_refused_waits_and_says_so() -> None:
    """It is not impossible: the nodes are tried again."""
    found = statuses(plan(two_nodes(refused_on("n0", "n1")), T0).items)["picky"]
    (scheduled,) = [one for one in found.conditions if one.type == "Scheduled"]
    assert scheduled.reason == "InsufficientCapacity"
    assert "2 avoided: node(s) had volume node affinity conflict" in scheduled.message


@pytest.mark.parametrize(("node", "stopped"), [("n9", True), (None, False)])
def test_nobody_makes_room_for_a_job_whose_pods_are_refused(
    node: str | None, stopped: bool
) -> None:
    urgent = refused_on(node)
    urgent = replace(urgent, spec=replace(urgent.spec, priority=5))
    others = [running(make_job(f"job{n}"), (f"n{n}", (f"GPU-{n}",))) for n in range(2)]
    pods = [make_pod(one) for one in others]
    snapshot = replace(two_nodes(urgent, *others), pods=tuple(pods))
    found = statuses(plan(snapshot, after(40)).items)
    stops = [one.stop.reason for one in found.values() if one.stop is not None]
    assert stops == (["Preempted"] if stopped else [])


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize(("code", "least_seconds"), [(1, 300), (143, 20_000)])
def test_an_edit_after_an_old_refusal_ends_no_pause_of_failures(
    code: int, least_seconds: int, *, edited: bool
) -> None:
    """A node refused the job's pod last week, and it started elsewhere. Then its priority was
    edited.
    """
    old = StartRefusal("CannotStart", "could not start", 1, after(-3000), "n9", (), 1)
    job = make_job("a", retries=5, generation=2 if edited else 1)
    world = World(with_status(job, start_refusals=(old,)), gpu_nodes=[make_gpu_node("n0")])
    while world.phase("a") is not JobPhase.FAILED:
        world.tick(1 if world.seconds < 400 else 30)
        if world.phase("a") is JobPhase.RUNNING:
            world.end("a", code)
    assert world.seconds > least_seconds
