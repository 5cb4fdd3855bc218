"""I7: the check of pods without a live owner can fail, and lets be what it should let be."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.manifest import to_manifest
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import NAMESPACE, make_job, running, with_status
from tests.simulation.api_server import ApiServer, Manifest
from tests.simulation.clock import Clock
from tests.simulation.orphans import ORPHAN_SECONDS_MAX, Orphans

pytestmark = pytest.mark.promise("I7")

LONG = ORPHAN_SECONDS_MAX + 1.0


@dataclass
class _Scene:
    """A job at attempt 1, and a live pod of it."""

    calm_from: float = 0.0
    clock: Clock = field(default_factory=lambda: Clock(1))
    broken: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.api = ApiServer(self.clock)
        self.orphans = Orphans(
            self.api,
            lambda: self.api.list(Kind.POD),
            lambda promise, _: self.broken.append(promise),
            self.calm_from,
        )
        manifest: Manifest = to_manifest(running(make_job("a")))
        manifest["metadata"] = {"name": "a", "namespace": NAMESPACE}
        self.job_uid: str = self.api.create(Kind.JOB, manifest, "user")["metadata"]["uid"]
        self._pod()

    def _pod(self) -> None:
        labels = {"gpujob.dev/job-uid": self.job_uid, "gpujob.dev/attempt": "1"}
        owner = {"uid": self.job_uid, "controller": True}
        metadata = {"name": "a-1-0", "namespace": NAMESPACE, "labels": labels}
        body = {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": {}}
        body["status"] = {"phase": "Running"}
        self.api.create(Kind.POD, body, "operator-0")

    def job_becomes(self, job: GPUJob) -> None:
        status = to_manifest(job)["status"]
        self.api.patch(Kind.JOB, NAMESPACE, "a", {"status": status}, "operator-0")

    def pod_becomes(self, patch: dict[str, Any], *, spec: bool = True) -> None:
        self.api.patch(Kind.POD, NAMESPACE, "a-1-0", patch, "kubelet", spec=spec)

    def wait(self, seconds: float = LONG) -> None:
        self.clock.run_until(self.clock.now + seconds, lambda: False)
        self.orphans.check()


@pytest.fixture
def scene() -> _Scene:
    return _Scene()


def test_a_pod_with_a_live_owner_is_none(scene: _Scene) -> None:
    scene.wait()
    assert scene.broken == []


def test_a_pod_whose_job_is_gone(scene: _Scene) -> None:
    scene.api.delete(Kind.JOB, NAMESPACE, "a", "user")
    scene.wait(ORPHAN_SECONDS_MAX - 1.0)
    assert scene.broken == []
    scene.wait(2.0)
    assert scene.broken == ["I7"]


@pytest.mark.parametrize(
    "job",
    [
        with_status(running(make_job("a")), phase=JobPhase.SUCCEEDED),
        running(make_job("a"), attempt=2),
    ],
    ids=["finished", "at another attempt"],
)
def test_a_pod_whose_attempt_is_over(scene: _Scene, job: GPUJob) -> None:
    scene.job_becomes(job)
    scene.wait()
    assert scene.broken == ["I7"]


def test_each_revision_is_looked_at_and_not_the_end_alone(scene: _Scene) -> None:
    """A pod that is an orphan for long and goes before the end was one all the same."""
    scene.api.delete(Kind.JOB, NAMESPACE, "a", "user")
    scene.clock.run_until(LONG, lambda: False)
    scene.pod_becomes({"metadata": {"annotations": {"any": "change"}}})
    scene.pod_becomes({"status": {"phase": "Failed"}}, spec=False)
    scene.wait()
    assert scene.broken == ["I7"]


@pytest.mark.parametrize("what", ["asked to go", "over", "let go"])
def test_a_pod_that_goes_is_over_or_was_let_go_is_none(scene: _Scene, what: str) -> None:
    scene.api.delete(Kind.JOB, NAMESPACE, "a", "user")
    if what == "asked to go":
        scene.api.delete(Kind.POD, NAMESPACE, "a-1-0", "garbage-collector", grace=30.0)
    elif what == "over":
        scene.pod_becomes({"status": {"phase": "Succeeded"}}, spec=False)
    else:
        scene.pod_becomes({"metadata": {"ownerReferences": None}})
    scene.wait()
    assert scene.broken == []


def test_time_counts_from_the_end_of_the_faults() -> None:
    scene = _Scene(calm_from=500.0)
    scene.api.delete(Kind.JOB, NAMESPACE, "a", "user")
    scene.wait(500.0)
    assert scene.broken == []
    scene.wait()
    assert scene.broken == ["I7"]
