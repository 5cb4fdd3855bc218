"""kubectl gpujob logs: before the pod, across attempts, of several ranks."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from kubectl_gpujob.kubectl import KubectlError
from kubectl_gpujob.verbs.logs import lines
from tests.harness.cli_jobs import MemoryCluster, MemoryLog, job, run_command


def pod(attempt: int, rank: int = 0, *, begun: bool = True) -> dict[str, Any]:
    state = {"running": {}} if begun else {"waiting": {"reason": "ContainerCreating"}}
    return {
        "metadata": {
            "name": f"resnet50-{attempt}-{rank}",
            "namespace": "vision",
            "labels": {"gpujob.dev/attempt": str(attempt), "gpujob.dev/rank": str(rank)},
        },
        "spec": {"nodeName": f"n{attempt}", "containers": [{"name": "worker"}]},
        "status": {"containerStatuses": [{"name": "worker", "state": state}]},
    }


def at(attempt: int, phase: str = "Running", **status: Any) -> GPUJob:
    return job(status={"attempt": attempt, "phase": phase, **status})


LOGS = {f"resnet50-{a}-{r}": f"attempt {a} rank {r}\n" for a in (1, 2) for r in (0, 1)}


def test_the_latest_attempts_log_is_printed() -> None:
    cluster = MemoryCluster([at(2)], pod_list=[pod(1), pod(2)], logs=LOGS)
    ran = run_command(cluster, "logs", "resnet50", "--tail", "5", "--since", "2m")
    assert (ran.exit_code, ran.stdout) == (0, "attempt 2 rank 0\n")
    assert cluster.asked == [
        "log of vision/resnet50-2-0 container=worker sinceSeconds=120 tailLines=5"
    ]


def test_all_attempts_have_a_line_between_them_on_standard_error() -> None:
    cluster = MemoryCluster([at(2, resumedFromStep=413)], pod_list=[pod(1), pod(2)], logs=LOGS)
    ran = run_command(cluster, "logs", "resnet50", "--all-attempts")
    assert ran.stdout == "attempt 1 rank 0\nattempt 2 rank 0\n"
    assert ran.stderr.splitlines() == [
        "--- attempt 1 on n1 ---",
        "--- attempt 2 on n2, resumed after step 413 ---",
    ]


def test_all_ranks_have_a_prefix() -> None:
    both = job(spec={"workers": 2}, status={"attempt": 1, "phase": "Running"})
    cluster = MemoryCluster([both], pod_list=[pod(1, 1), pod(1, 0)], logs=LOGS)
    ran = run_command(cluster, "logs", "resnet50", "--all-ranks")
    assert sorted(ran.stdout.splitlines()) == ["[0] attempt 1 rank 0", "[1] attempt 1 rank 1"]
    one = run_command(cluster, "logs", "resnet50", "--rank", "1")
    assert one.stdout == "attempt 1 rank 1\n"


def test_without_a_log_the_reason_and_the_next_step_are_told() -> None:
    waiting = job(status={"summary": {"reason": "InsufficientCapacity: needs 20 GiB"}})
    ran = run_command(MemoryCluster([waiting]), "logs", "resnet50")
    assert ran.exit_code == 1
    assert "has no log yet: InsufficientCapacity: needs 20 GiB" in str(ran.exception)
    assert "logs -f resnet50" in str(ran.exception)
    cluster = MemoryCluster([at(2)], pod_list=[pod(2)], logs=LOGS)
    other = run_command(cluster, "logs", "resnet50", "--attempt", "1")
    assert "no log of attempt 1; there are 2" in str(other.exception)


def test_a_rank_that_the_job_does_not_have_is_an_error_and_not_waited_for() -> None:
    cluster = MemoryCluster([at(1)], pod_list=[pod(1)], logs=LOGS)
    ran = run_command(cluster, "logs", "resnet50", "-f", "--rank", "1")
    assert ran.exit_code == 1
    assert str(ran.exception) == "resnet50 has no rank 1: it has 1 worker, from rank 0 on"


def test_a_container_that_could_not_start_has_the_jobs_reason() -> None:
    stopped = pod(1)
    ended = {"terminated": {"reason": "StartError", "exitCode": 128}}
    stopped["status"]["containerStatuses"][0]["state"] = ended
    failed = at(1, "Failed", summary={"reason": "UserError: permission denied"})
    cluster = MemoryCluster([failed], pod_list=[stopped])
    ran = run_command(cluster, "logs", "resnet50")
    assert str(ran.exception) == "resnet50 has no log: UserError: permission denied"
    followed = run_command(cluster, "logs", "resnet50", "-f")
    assert followed.exit_code == 3
    assert followed.stderr.splitlines()[0] == "UserError: permission denied"


def test_a_job_that_is_deleted_while_it_is_followed_is_named() -> None:
    def delete(cluster: MemoryCluster, reads: int) -> None:
        if reads == 1:
            cluster.held = []

    cluster = MemoryCluster([at(1)], pod_list=[pod(1)], logs=LOGS, before_read=delete)
    ran = run_command(cluster, "logs", "resnet50", "-f")
    assert (ran.exit_code, ran.stdout) == (1, "attempt 1 rank 0\n")
    assert str(ran.exception) == "gpujob resnet50 was deleted"


def test_a_log_that_cannot_be_read_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = KubectlError("BadRequest", "sinceSeconds is not supported")

    def failure(_: MemoryLog) -> KubectlError:
        return refusal

    monkeypatch.setattr(MemoryLog, "failure", failure)
    cluster = MemoryCluster([at(1)], pod_list=[pod(1)])
    ran = run_command(cluster, "logs", "resnet50", "--since", "2s")
    assert ran.exit_code == 1
    assert ran.stderr == "log of resnet50-1-0: sinceSeconds is not supported\n"


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 3)])
def test_following_waits_for_the_pod_and_goes_on_with_the_next_attempt(
    phase: str, code: int
) -> None:
    steps: list[tuple[GPUJob, list[dict[str, Any]]]] = [
        (job(status={"summary": {"reason": "OverQuota: wait"}}), []),
        (job(status={"summary": {"reason": "OverQuota: wait"}}), []),
        (at(1), [pod(1, begun=False)]),
        (at(1), [pod(1)]),
        (at(1, "Stopping"), [pod(1)]),
        (at(1, "Pending"), [pod(1)]),
        (at(2, resumedFromStep=7), [pod(1), pod(2)]),
        (at(2, phase), [pod(1), pod(2)]),
    ]

    def play(cluster: MemoryCluster, reads: int) -> None:
        held, pods = steps[min(reads, len(steps) - 1)]
        cluster.held, cluster.pod_list = [held], pods

    cluster = MemoryCluster(logs=LOGS, before_read=play)
    ran = run_command(cluster, "logs", "resnet50", "-f")
    assert ran.exit_code == code
    assert ran.stdout == "attempt 1 rank 0\nattempt 2 rank 0\n"
    said = ran.stderr.splitlines()
    assert said[0] == "waiting for resnet50: OverQuota: wait"
    assert said.count(said[0]) == 1, "a reason is repeated after a minute, not each time"
    assert "--- attempt 2 on n2, resumed after step 7 ---" in said
    assert said[-1] == f"--- resnet50 {phase} ---"
    assert all("follow=true" in one for one in cluster.asked)


def test_a_job_that_ends_without_a_pod_ends_the_following() -> None:
    failed = replace(job(), status=replace(job().status, phase=JobPhase.FAILED))
    assert run_command(MemoryCluster([failed]), "logs", "resnet50", "-f").exit_code == 3


def test_a_progress_bar_is_its_last_state() -> None:
    assert list(lines([b"10%\r20%\r30%\n", b"plain\r\n", b"\n", b"\xff\n"])) == [
        "30%",
        "plain",
        "",
        "\ufffd",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tail", "-1"),
        ("--attempt", "1", "--all-attempts"),
        ("--attempt", "0"),
        ("--rank", "-1"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    ran = run_command(MemoryCluster([at(1)]), "logs", "resnet50", *arguments)
    assert ran.exit_code == 2
