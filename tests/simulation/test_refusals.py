"""I4, I10: pods that are refused or cannot start: their job says why and gives its GPUs back."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.pod_starts import NO_EXECUTABLE
from tests.simulation.quotas import PodQuota
from tests.simulation.result import Result
from tests.simulation.scenes import EXCLUSIVE, OTHER, TEAM
from tests.simulation.simulation import Simulation
from tests.simulation.troubles import OVER_QUOTA, Trouble, TroubleKind
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

# From the moment that a pod is refused, or cannot start, until its GPUs are another job's.
REFUSED_SECONDS = 10.0
UNSTARTED_SECONDS = 60.0
MENDED = 300.0


class Watched:
    """A calm simulation whose statuses of one job are kept."""

    def __init__(
        self,
        nodes: list[NodePlan],
        *submissions: Submission,
        troubles: tuple[Trouble, ...] = (),
        quotas: tuple[PodQuota, ...] = (),
        incidents: list[Incident] | None = None,
        end_seconds: float = 3000.0,
    ) -> None:
        self.seen: dict[str, list[GPUJob]] = {one.name: [] for one in submissions}
        self.held_seconds = dict.fromkeys(self.seen, 0.0)
        self._held_since: dict[str, float] = {}
        self.simulation = Simulation(
            3,
            scenario=Scenario(tuple(nodes), submissions, troubles, quotas=quotas),
            faults=Faults(),
            incidents=incidents or [],
            operators=1,
            end_seconds=end_seconds,
        )
        self.simulation.api.recorders.append(self._note)
        self.result: Result = self.simulation.run()

    def _note(self, revision: Revision) -> None:
        if revision.kind is not Kind.JOB or revision.type == "DELETED":
            return
        job = gpujob_from_manifest(revision.object)
        name = job.metadata.name
        self.seen[name].append(job)
        if job.status.placement is not None and not job.finished:
            self._held_since.setdefault(name, revision.at)
        elif name in self._held_since:
            self.held_seconds[name] += revision.at - self._held_since.pop(name)

    def last(self, name: str) -> GPUJob:
        return self.seen[name][-1]

    def nodes(self, name: str) -> list[str]:
        """The node of each attempt, in order."""
        attempts: dict[int, str] = {}
        for job in self.seen[name]:
            if job.status.placement is not None:
                attempts[job.status.attempt] = job.status.placement.workers[0].node
        return list(attempts.values())

    def said(self, name: str, kind: str) -> set[str]:
        """The messages that a condition ever had."""
        return {one.message for job in self.seen[name] for one in job.status.conditions
                if one.type == kind}  # fmt: skip


def job(name: str, at: float, workload: Workload, namespace: str = TEAM, **spec: Any) -> Submission:
    return Submission(name, at, make_spec(name, **spec), workload, namespace=namespace)


def no_fault_of(job: GPUJob) -> bool:
    counted = job.status.counters
    return (counted.errors, counted.hung, counted.out_of_memory) == (0, 0, 0)


@pytest.mark.parametrize("kind", [TroubleKind.QUOTA, TroubleKind.WEBHOOK], ids=lambda k: k.value)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_whose_pods_a_dry_run_refuses_takes_no_gpu(kind: TroubleKind, workers: int) -> None:
    refused = job("refused", 0.0, Workload(steps=10), OTHER, workers=workers, **EXCLUSIVE)
    well = job("well", 0.0, Workload(steps=200), workers=workers, **EXCLUSIVE)
    trouble = Trouble(kind, OTHER, 0.0, MENDED)
    seen = Watched([NodePlan("n0", workers)], refused, well, troubles=(trouble,))
    assert not seen.result.violations
    assert seen.result.ends == {"other/refused": "Succeeded", "team/well": "Succeeded"}
    first_pod_at = seen.result.stories["team/well"].first_pod_at
    assert first_pod_at is not None
    assert first_pod_at < REFUSED_SECONDS
    words = "exceeded quota" if kind is TroubleKind.QUOTA else "failed calling webhook"
    assert any(words in text for text in seen.said("refused", "Scheduled"))
    assert not any(one.status.stop for one in seen.seen["refused"])
    assert seen.last("refused").status.attempt == 1
    assert set(seen.result.refused) == {"try Pod refused-1-0"}
    assert 3 <= seen.result.refused["try Pod refused-1-0"] <= 6, "the pauses between tries grow"


@pytest.mark.promise("I4")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_whose_pods_are_refused_after_all_gives_its_gpus_back(workers: int) -> None:
    """A webhook with side effects cannot be asked by a dry run."""
    refused = job("refused", 0.0, Workload(steps=10), OTHER, workers=workers, **EXCLUSIVE)
    well = job("well", 5.0, Workload(steps=200), workers=workers, **EXCLUSIVE)
    trouble = Trouble(TroubleKind.WEBHOOK_WITH_EFFECTS, OTHER, 0.0, MENDED)
    seen = Watched([NodePlan("n0", workers)], refused, well, troubles=(trouble,))
    assert not seen.result.violations
    assert seen.result.ends == {"other/refused": "Succeeded", "team/well": "Succeeded"}
    first_pod_at = seen.result.stories["team/well"].first_pod_at
    assert first_pod_at is not None
    assert first_pod_at < 5.0 + REFUSED_SECONDS
    assert no_fault_of(seen.last("refused"))
    for condition in ("Scheduled", "Running"):
        said = seen.said("refused", condition)
        assert any("failed calling webhook" in text for text in said), condition
    reasons = {stop.reason for one in seen.seen["refused"] if (stop := one.status.stop)}
    assert reasons == {"PodRejected"}
    # It holds GPUs for moments only, until nobody refuses its pods any more.
    tries = seen.last("refused").status.attempt - 1
    assert 3 <= tries <= 12, "the pauses between tries grow"


def test_jobs_of_a_namespace_with_a_quota_run_one_after_the_other() -> None:
    """The quota has room again when a pod has ended; GPUs are not held for pods it refuses."""
    limited = [job(name, 0.0, Workload(steps=60), OTHER, **EXCLUSIVE) for name in ("a", "b", "c")]
    free = job("free", 30.0, Workload(steps=60), **EXCLUSIVE)
    seen = Watched([NodePlan("n0", 2)], *limited, free, quotas=(PodQuota(OTHER, 1),))
    assert not seen.result.violations
    assert set(seen.result.ends.values()) == {"Succeeded"}
    assert seen.simulation.quotas.refused[OTHER] >= 2
    assert "used: pods=1, limited: pods=1" in " ".join(
        text for name in "abc" for text in seen.said(name, "Scheduled")
    )
    assert all(no_fault_of(seen.last(name)) for name in "abc")
    first_pod_at = seen.result.stories["team/free"].first_pod_at
    assert first_pod_at is not None
    assert first_pod_at < 30.0 + REFUSED_SECONDS


def test_two_gangs_whose_pods_fit_a_quota_only_one_by_one_both_end() -> None:
    gangs = [job(name, 0.0, Workload(steps=30), OTHER, workers=2, **EXCLUSIVE) for name in "ab"]
    seen = Watched([NodePlan("n0", 4)], *gangs, quotas=(PodQuota(OTHER, 3),))
    assert not seen.result.violations
    assert set(seen.result.ends.values()) == {"Succeeded"}
    assert seen.simulation.quotas.refused[OTHER] >= 1


def test_a_refusal_is_told_in_the_end_of_a_job_that_was_never_let_in() -> None:
    refused = job("refused", 0.0, Workload(steps=10, expected="Pending"), OTHER)
    trouble = Trouble(TroubleKind.QUOTA, OTHER, 0.0, 1e9)
    seen = Watched([NodePlan("n0", 1)], refused, troubles=(trouble,), end_seconds=2000.0)
    last = seen.last("refused")
    assert not last.finished
    scheduled = next(one for one in last.status.conditions if one.type == "Scheduled")
    assert OVER_QUOTA in scheduled.message
    assert seen.held_seconds["refused"] < 60.0


def test_a_job_goes_to_its_volume_without_being_refused_anywhere() -> None:
    zonal = job("zonal", 0.0, Workload(steps=10, volume_nodes=("n2",)))
    gang = job("gang", 0.0, Workload(steps=10, volume_nodes=("n1", "n3")), workers=2, **EXCLUSIVE)
    seen = Watched([NodePlan(f"n{n}", 1) for n in range(4)], zonal, gang)
    assert not seen.result.violations
    assert seen.result.ends == {"team/zonal": "Succeeded", "team/gang": "Succeeded"}
    assert seen.nodes("zonal") == ["n2"]
    for name in ("zonal", "gang"):
        assert seen.last(name).status.attempt == 1
        assert not seen.last(name).status.start_refusals


def test_a_job_whose_volume_is_nowhere_takes_no_gpu() -> None:
    nowhere = Workload(steps=10, volume_nodes=("gone",), expected="Pending")
    seen = Watched([NodePlan("n0", 1)], job("nowhere", 0.0, nowhere), end_seconds=600.0)
    assert seen.last("nowhere").status.attempt == 0
    assert seen.held_seconds["nowhere"] == 0.0
    texts = seen.said("nowhere", "Scheduled")
    assert any("volume of claim nowhere-data" in text for text in texts)


def test_a_volume_that_nobody_knew_of_sends_the_job_to_its_zone() -> None:
    nodes = [NodePlan("n0", 1), NodePlan("n1", 1), NodePlan("n2", 1)]
    zonal = job("zonal", 0.0, Workload(steps=10, volume_nodes=("n2",), volume_is_bound=False))
    seen = Watched(nodes, zonal)
    assert not seen.result.violations
    assert seen.result.ends == {"team/zonal": "Succeeded"}
    assert seen.nodes("zonal") == ["n0", "n1", "n2"], "no node is tried twice"
    assert no_fault_of(seen.last("zonal"))
    assert any("volume node affinity conflict" in text for text in seen.said("zonal", "Running"))
    assert {one.node for one in seen.last("zonal").status.start_refusals} == {"n0", "n1"}


def test_a_job_that_no_node_takes_waits_and_says_why() -> None:
    nowhere = Workload(steps=10, volume_nodes=("gone",), volume_is_bound=False, expected="Pending")
    jobs = (
        job("nowhere", 0.0, nowhere, **EXCLUSIVE),
        job("well", 3.0, Workload(steps=400), **EXCLUSIVE),
    )
    seen = Watched([NodePlan("n0", 1)], *jobs, end_seconds=1500.0)
    assert seen.result.ends["team/well"] == "Succeeded"
    assert not seen.last("nowhere").finished
    assert no_fault_of(seen.last("nowhere"))
    texts = seen.said("nowhere", "Scheduled")
    assert any("volume node affinity conflict" in text for text in texts)


@pytest.mark.promise("I10")
@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "ImagePullBackOff"])
def test_a_pod_that_cannot_start_gives_its_gpus_back(reason: str) -> None:
    broken = Workload(steps=10, cannot_start=reason, cannot_start_until=MENDED)
    seen = Watched([NodePlan("n0", 1)], job("broken", 0.0, broken, **EXCLUSIVE),
                   job("well", 3.0, Workload(steps=100), **EXCLUSIVE))  # fmt: skip
    assert not seen.result.violations
    assert seen.result.ends == {"team/broken": "Succeeded", "team/well": "Succeeded"}
    first_pod_at = seen.result.stories["team/well"].first_pod_at
    assert first_pod_at is not None
    assert first_pod_at < UNSTARTED_SECONDS
    assert no_fault_of(seen.last("broken"))
    assert any('secret "keys" not found' in text for text in seen.said("broken", "Running"))


def test_a_command_that_is_not_in_the_image_is_the_users_error_at_once() -> None:
    missing = Workload(steps=10, has_executable=False, expected="Failed")
    seen = Watched([NodePlan("n0", 1)], job("missing", 0.0, missing))
    assert seen.result.ends == {"team/missing": "Failed"}
    last = seen.last("missing")
    assert (last.status.attempt, last.status.counters.errors) == (1, 1)
    assert last.status.failure is not None
    assert last.status.failure.failure_class.value == "UserError"
    assert NO_EXECUTABLE in last.status.failure.message


def test_a_large_image_may_be_pulled_for_longer_than_the_start_timeout() -> None:
    slow = Workload(steps=10, pull_seconds=1500.0)
    seen = Watched([NodePlan("n0", 1)], job("slow", 0.0, slow))
    assert not seen.result.violations
    assert seen.result.ends == {"team/slow": "Succeeded"}
    assert seen.last("slow").status.attempt == 1


@pytest.mark.parametrize("what", ["destroy", "power"])
def test_a_node_that_goes_while_a_job_starts_is_no_error(what: str) -> None:
    starting = Workload(steps=10, pull_seconds=120.0)
    incidents = [Incident(20.0, what, "n0", 4000.0)]
    nodes = [NodePlan("n0", 1), NodePlan("n1", 1)]
    seen = Watched(nodes, job("starting", 0.0, starting), incidents=incidents)
    last = seen.last("starting")
    assert no_fault_of(last)
    if what == "destroy":
        assert last.finished
        assert seen.nodes("starting") == ["n0", "n1"]


def test_gpus_are_not_given_to_a_gang_of_which_one_pod_is_refused() -> None:
    gang = Workload(steps=10, volume_nodes=("n0", "n2"), volume_is_bound=False)
    nodes = [NodePlan(name, 1) for name in ("n0", "n1", "n2")]
    seen = Watched(nodes, job("gang", 0.0, gang, workers=2, **EXCLUSIVE))
    assert not seen.result.violations
    assert seen.result.ends == {"team/gang": "Succeeded"}
    assert no_fault_of(seen.last("gang"))
    assert replace(seen.last("gang").status.counters, preemptions=0).errors == 0
