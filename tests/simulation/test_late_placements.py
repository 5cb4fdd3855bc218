"""Queues and readings are judged by what the decision could know (I1, I11)."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import GIB
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import make_job, placed, reserve
from tests.harness.manifests import pod_manifest
from tests.simulation.api_server import Revision
from tests.simulation.queue_rules import QueueRules
from tests.simulation.recorder import Recorder
from tests.simulation.room import CLOCK_SLACK_SECONDS
from tests.simulation.workloads import make_queue

QUEUE = make_queue("lab", nominal={"gpuMemory": "48Gi"})
QUEUE["metadata"]["uid"] = "uid-lab"


@dataclass
class _Cluster:
    """An API server and the jobs that it has, as both judges ask for them."""

    now: float = 0.0
    jobs: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])
    recorders: list[Any] = field(default_factory=list[Any])
    restored: list[Any] = field(default_factory=list[Any])
    found: list[str] = field(default_factory=list[str])

    def list(self, kind: Kind) -> list[Any]:
        if kind is Kind.QUEUE:
            return [QUEUE]
        return [{"metadata": {"uid": uid}} for uid in self.jobs]

    def job_now(self, uid: str) -> GPUJob | None:
        return self.jobs.get(uid)

    def is_leaving(self, uid: str) -> bool:
        return False

    def may_not_know(self, at: float) -> bool:
        return False

    def fail(self, invariant: str, message: str) -> None:
        self.found.append(f"{invariant}: {message}")

    def write(self, at: float, name: str, gib: int, decided_at: float = 0.0) -> None:
        job = placed(make_job(name, queue="lab"), held=reserve(gib * GIB), at=decided_at)
        self.now, self.jobs[job.metadata.uid] = at, job
        for observe in self.recorders:
            observe(Revision(1, at, Kind.JOB, "MODIFIED", {}, None, "one", at))


def _cluster() -> _Cluster:
    cluster: Any = _Cluster()
    QueueRules(cluster, cluster, preemptions_max=3)
    cluster.write(0.0, "first", 5)
    return cluster


LATE = 20.0 + CLOCK_SLACK_SECONDS


@pytest.mark.parametrize(("grown_at", "counts"), [(10.0, True), (LATE, False)])
def test_growth_beyond_a_quota_counts_for_who_is_placed_after_it(
    grown_at: float, counts: bool
) -> None:
    cluster = _cluster()
    cluster.write(grown_at, "first", 44)
    assert cluster.found == [], "it was measured"
    cluster.write(60.0, "second", 5, decided_at=20.0 + CLOCK_SLACK_SECONDS / 2)
    beyond = f"I11: queue lab has {49 * GIB} of {48 * GIB} bytes with team/second"
    assert cluster.found == ([beyond] if counts else [])


def test_what_was_given_back_meanwhile_does_not_count_either() -> None:
    cluster = _cluster()
    cluster.write(10.0, "first", 44)
    cluster.write(50.0, "first", 5)
    cluster.write(60.0, "second", 5, decided_at=20.0)
    assert cluster.found == []


def test_what_is_beyond_the_quota_from_the_beginning_counts_however_late_the_write() -> None:
    cluster = _cluster()
    cluster.write(60.0, "second", 44, decided_at=20.0)
    assert len(cluster.found) == 1


@pytest.mark.parametrize(("node", "seen_bytes"), [("n0", 7 * GIB), ("n1", 0)])
def test_of_a_pod_elsewhere_no_agent_says_what_it_uses(node: str, seen_bytes: int) -> None:
    cluster: Any = _Cluster()
    recorder = Recorder(cluster, {"one"}, sees_all=True)
    pod = pod_manifest(make_job(), node="n0", uid="pod")
    recorder._ours["pod"] = ("uid-job", 1)
    recorder._pod(Revision(1, 0.0, Kind.POD, "MODIFIED", pod, None, "kubelet", 0.0), ours=False)
    gpu = {"uuid": "GPU-0", "memoryTotalBytes": 24 * GIB, "memoryUsedBytes": 0}
    process = {"podUid": "pod", "memoryBytes": 7 * GIB}
    recorder.read_gpus(node, [{**gpu, "memoryReservedBytes": 0, "processes": [process]}])
    assert recorder._room._seen_bytes.get((("uid-job", 1), (node, "GPU-0")), 0) == seen_bytes
