"""The checks of what processes really do can fail: each is broken once."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.manifest import to_manifest
from gpujob_api.quantities import GIB
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import make_job, reserve, running, with_status
from tests.simulation.api_server import ApiServer, Revision
from tests.simulation.clock import Clock
from tests.simulation.machines import Machine, PhysicalGPU
from tests.simulation.processes import OUTLIVES_SECONDS, Processes
from tests.simulation.worker import Worker
from tests.simulation.workloads import NodePlan

GPU = "GPU-0"


@dataclass
class _Process:
    """As much of a worker as the checks look at."""

    machine: Machine
    job_uid: str = "uid-a"
    attempt: int = 1
    rank: int = 0
    used_bytes: int = 2 * GIB
    ended: bool = False
    begun: bool = True
    answered: bool = True
    sigterm_at: float | None = None
    gpus: tuple[str, ...] = (GPU,)

    @property
    def pod_uid(self) -> str:
        return f"pod-{self.job_uid}-{self.attempt}-{self.rank}"

    @property
    def name(self) -> str:
        return self.pod_uid

    def memory_on(self, uuid: str) -> int:
        return self.used_bytes if uuid in self.gpus else 0


@dataclass
class _Scene:
    clock: Clock = field(default_factory=lambda: Clock(1))
    broken: list[str] = field(default_factory=list[str])
    late: set[str] = field(default_factory=set[str])
    # Those among them that the leader found.
    found: set[str] = field(default_factory=set[str])
    # Workers that took their last step.
    done: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])
    ages_are_known: bool = True
    knows_ends: bool = True
    _before: dict[str, GPUJob] = field(default_factory=dict[str, GPUJob])

    def __post_init__(self) -> None:
        self.api = ApiServer(self.clock)
        gpus = {GPU: PhysicalGPU(GPU, 24 * GIB, 0)}
        self.machine = Machine("n0", NodePlan("n0", 1), gpus)
        machines = {"n0": self.machine}
        self.api.recorders.append(self._note)
        self.processes = Processes(
            self.api,
            machines,
            lambda what, _: self.broken.append(what),
            self,
            self.done,
            lambda: self.ages_are_known,
        )

    def _note(self, revision: Revision) -> None:
        if revision.kind is Kind.JOB and revision.before is not None:
            uid = revision.object["metadata"]["uid"]
            self._before[uid] = self.api.job(revision.before)

    def job_now(self, uid: str) -> GPUJob | None:
        manifest = self.api.find(Kind.JOB, uid)
        return None if manifest is None else self.api.job(manifest)

    def job_before(self, uid: str) -> GPUJob | None:
        return self._before.get(uid)

    def came_late(self, pod_uid: str) -> bool:
        return pod_uid in self.late

    def is_relied_on(self, pod_uid: str) -> bool:
        return pod_uid in self.found

    def end_is_known(self, uid: str, attempt: int) -> bool:
        del uid, attempt
        return self.knows_ends

    def put(self, job: GPUJob) -> None:
        manifest: dict[str, Any] = to_manifest(job)
        manifest["metadata"].pop("resourceVersion", None)
        key = job.metadata.namespace, job.metadata.name
        if self.api.find(Kind.JOB, job.metadata.uid) is None:
            manifest["metadata"]["uid"] = job.metadata.uid
            self.api._objects[Kind.JOB][job.metadata.uid] = manifest
            self.api._names[Kind.JOB, "/".join(key)] = job.metadata.uid
            manifest["metadata"]["resourceVersion"] = "1"
        else:
            patch = {"status": {"placement": None, **manifest["status"]}}
            self.api.patch(Kind.JOB, *key, patch, "operator-0")

    def start(self, **facts: Any) -> Worker:
        process = _Process(self.machine, **facts)
        worker = cast("Worker", process)
        self.processes.begins(worker)
        self.machine.workers[process.pod_uid] = worker
        return worker


@pytest.fixture
def scene() -> _Scene:
    return _Scene()


def test_two_attempts_of_one_job(scene: _Scene) -> None:
    scene.start(attempt=1)
    scene.start(job_uid="uid-other", attempt=2)
    assert scene.broken == []
    scene.start(attempt=2)
    assert scene.broken == ["I3"]


def test_two_processes_of_one_rank_and_two_ranks_of_a_gang(scene: _Scene) -> None:
    scene.start(rank=0)
    scene.start(rank=1)
    assert scene.broken == []
    scene.start(rank=1)
    assert scene.broken == ["I3"]


def test_a_process_that_has_not_begun_is_in_nobodys_way(scene: _Scene) -> None:
    scene.start(attempt=1, begun=False)
    scene.start(attempt=2)
    assert scene.broken == []


def test_a_process_that_begins_although_it_was_told_that_its_attempt_is_over(scene: _Scene) -> None:
    scene.put(running(make_job("a"), attempt=2))
    scene.start(attempt=2)
    assert scene.broken == []
    late = scene.start(attempt=1, answered=False)
    assert scene.broken == [], "nobody answered it"
    scene.start(attempt=2, rank=1)
    assert scene.broken == [], "what nobody stopped is left to the checkpoint store"
    late.ended = True
    scene.start(attempt=1)
    assert set(scene.broken) == {"I3"}


@pytest.mark.parametrize(
    ("attempt", "is_found", "broken"), [(2, True, []), (2, False, ["I3"]), (3, True, ["I3"])]
)
def test_a_process_that_begins_while_its_job_waits(
    scene: _Scene, attempt: int, is_found: bool, broken: list[str]
) -> None:
    """Unless whoever leads found the pod that records the next attempt."""
    scene.put(with_status(make_job("a"), attempt=1))
    scene.found = {f"pod-uid-a-{attempt}-0"} if is_found else set()
    scene.start(attempt=attempt)
    assert scene.broken == broken


def test_gpus_that_are_given_back_while_the_process_runs(scene: _Scene) -> None:
    job = running(make_job("a"))
    scene.put(job)
    worker = scene.start()
    pending = with_status(job, phase=JobPhase.PENDING, placement=None)
    worker.ended = True
    scene.put(pending)
    assert scene.broken == []
    scene.put(job)
    worker.ended = False
    scene.put(pending)
    assert scene.broken == ["I3"]


@pytest.mark.parametrize(("late", "begun"), [(True, False), (True, True), (False, False)])
def test_gpus_are_given_back_before_a_late_pods_process_begins(
    scene: _Scene, *, late: bool, begun: bool
) -> None:
    """Of a pod that no operator could have heard of; it must not begin afterwards."""
    job = running(make_job("a"))
    scene.put(job)
    worker = scene.start(begun=begun)
    scene.late.update([worker.pod_uid] if late else [])
    scene.put(with_status(job, phase=JobPhase.PENDING, placement=None))
    allowed = late and not begun
    assert scene.broken == ([] if allowed else ["I3"])
    scene.processes.begins(worker)
    assert scene.broken[-1:] == ["I3"]


def test_a_process_that_outlives_its_pod(scene: _Scene) -> None:
    worker = scene.start()
    scene.processes.check()
    scene.clock.now = OUTLIVES_SECONDS
    scene.processes.check()
    assert scene.broken == []
    scene.clock.now = OUTLIVES_SECONDS + 1
    worker.machine.connected = False
    scene.processes.check()
    assert scene.broken == [], "its kubelet cannot know"
    worker.machine.connected = True
    scene.processes.check()
    scene.clock.now += OUTLIVES_SECONDS + 1
    scene.processes.check()
    assert scene.broken == ["I7"]


def test_a_gpu_that_is_full_although_everybody_keeps_to_what_was_given(scene: _Scene) -> None:
    for name in ("a", "b"):
        scene.put(running(make_job(name), held=reserve(13 * GIB)))
    scene.start(job_uid="uid-b", used_bytes=13 * GIB)
    worker = scene.start(job_uid="uid-a", used_bytes=0)
    scene.processes.gpu_is_full(worker, GPU, 14 * GIB)
    assert scene.broken == [], "it wants more than it holds"
    scene.processes.gpu_is_full(worker, GPU, 12 * GIB)
    assert scene.broken == ["I1"]


def test_a_gpu_that_its_agent_called_larger_than_it_is(scene: _Scene) -> None:
    for name in ("a", "b"):
        scene.put(running(make_job(name), held=reserve(13 * GIB)))
    scene.start(job_uid="uid-b", used_bytes=13 * GIB)
    worker = scene.start(job_uid="uid-a", used_bytes=0)
    scene.machine.has_exaggerated = True
    scene.processes.gpu_is_full(worker, GPU, 12 * GIB)
    assert scene.broken == []


def test_a_gpu_that_somebody_else_made_full(scene: _Scene) -> None:
    scene.put(running(make_job("a"), held=reserve(13 * GIB)))
    scene.put(running(make_job("b"), held=reserve(4 * GIB)))
    scene.start(job_uid="uid-b", used_bytes=13 * GIB)
    worker = scene.start(job_uid="uid-a", used_bytes=0)
    scene.processes.gpu_is_full(worker, GPU, 12 * GIB)
    gpu = scene.machine.gpus[GPU]
    scene.machine.gpus[GPU] = replace(gpu, unmanaged_bytes=12 * GIB)
    scene.machine.workers.clear()
    scene.processes.gpu_is_full(worker, GPU, 13 * GIB)
    assert scene.broken == []


@pytest.mark.parametrize("done", [True, False])
def test_no_job_succeeded_that_was_not_done(scene: _Scene, *, done: bool) -> None:
    """I15: whatever its worker ended with."""
    job = running(make_job(), ("n0", (GPU,)))
    scene.put(job)
    if done:
        scene.done.add((job.metadata.uid, 1, 0))
    scene.put(with_status(job, phase=JobPhase.SUCCEEDED))
    assert scene.broken == ([] if done else ["I15"])


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_restore_may_take_the_sign_of_an_end_from_outside(
    scene: _Scene, *, is_ended: bool
) -> None:
    job = running(make_job(), ("n0", (GPU,)))
    scene.put(job)
    sigterm_at = 3.0 if is_ended else None
    worker = scene.start(job_uid=job.metadata.uid, attempt=1, sigterm_at=sigterm_at)
    for restored in scene.api.restored:
        restored()
    worker.ended = True
    scene.put(with_status(job, phase=JobPhase.SUCCEEDED))
    assert scene.broken == ([] if is_ended else ["I15"])


@pytest.mark.parametrize(("ages", "ends"), [(True, False), (False, True), (False, False)])
def test_an_end_without_a_word_is_unknown_after_a_jump_of_the_clock(
    scene: _Scene, *, ages: bool, ends: bool
) -> None:
    scene.ages_are_known, scene.knows_ends = ages, ends
    job = running(make_job(), ("n0", (GPU,)))
    scene.put(job)
    scene.put(with_status(job, phase=JobPhase.SUCCEEDED))
    assert scene.broken == ([] if not ages and not ends else ["I15"])
