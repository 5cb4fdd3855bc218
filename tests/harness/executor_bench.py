"""An executor on a fake API server and a fake clock, with everything it tells and asks."""

from dataclasses import replace
from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.settings import Settings
from gpujob_operator.act.backoff import Backoff
from gpujob_operator.act.executor import Executor, Submission
from gpujob_operator.act.item_runner import ItemRunner
from gpujob_operator.act.slots import WriteSlots
from gpujob_operator.act.trials import Trials
from gpujob_operator.act.writer import Feedback, Writer, WriteResult
from gpujob_operator.client.kube import (
    JOBS,
    Manifest,
    ResourceType,
)
from gpujob_operator.client.retry import Retry
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.placement_record import record_of
from gpujob_operator.decide.model.plan import CreatePod, EventNote, Plan, PlanItem, WriteStatus
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.observe.placement_records import PlacementRecords
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed, with_status
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.manifests import job_manifest


class ExecutorBench:
    """An executor with everything it tells and asks."""

    def __init__(
        self,
        lanes_max: int = 100,
        slots: int = 32,
        configuration: Configuration | None = None,
        claims: tuple[str, ...] = ("checkpoints",),
    ) -> None:
        self.kube = FakeKube()
        self.kube.put_claims(*claims)
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.leads = True
        self.written: list[tuple[str, str]] = []
        self.gone: list[str] = []
        self.notes: list[str] = []
        self.settled = 0
        self.restores = 0
        # What the jobs' pods in any namespace ask for.
        self.requests_of_jobs: list[PodRequests] = []
        # The resourceVersions of objects in the newest snapshot, by UID.
        self.versions: dict[str, int] = {}
        writer = Writer(
            self.kube,
            Feedback(
                self._wrote, lambda _, uid: self.gone.append(uid), self._noted, self._restored
            ),
            configuration=configuration or Configuration(report_url="http://operator/report"),
            clock=self.clock.now,
            may_act=lambda: self.leads,
            version=lambda kind, uid: self.versions.get(uid, 0),
        )
        runner = ItemRunner(
            writer,
            self.metrics,
            monotonic=self.clock.monotonic,
            retry=Retry(sleep=self.clock.sleep, uniform=lambda low, high: high),
            backoff=Backoff(self.clock.monotonic, uniform=lambda low, high: high),
            slots=WriteSlots(self.clock.monotonic, total=slots, of_a_namespace=slots),
            trials=Trials(Configuration(), self.clock.now),
            requests_of_jobs=lambda namespace: self.requests_of_jobs,
        )
        self.executor = Executor(runner, self.metrics, settled=self._settle, lanes_max=lanes_max)

    def _restored(self) -> None:
        self.restores += 1

    def _settle(self) -> None:
        self.settled += 1

    def _wrote(self, kind: ResourceType, manifest: Manifest) -> None:
        self.written.append((kind.plural, manifest["metadata"]["name"]))

    def _noted(self, metadata: Any, note: EventNote) -> None:
        self.notes.append(f"{metadata.name}: {note.reason}")

    def job(self, name: str = "job", namespace: str = "team") -> Any:
        """A placed job as the API server has it now."""
        return self._stored(placed(make_job(name, namespace=namespace)))

    def new_job(self) -> Any:
        """A job that waits, as the API server has it now."""
        return self._stored(make_job("job", namespace="team"))

    def _stored(self, job: Any) -> Any:
        stored = self.kube.put(JOBS, job_manifest(job))
        version = stored["metadata"]["resourceVersion"]
        return at_version(job, version)

    async def run(self, *items: PlanItem) -> dict[WriteResult, int]:
        """Writes the items to their end; how it went."""
        self.submit(*items)
        await self.executor.drain(5)
        assert self.executor.lanes == 0
        return dict(self.executor.take_results())

    def submit(self, *items: PlanItem) -> Submission:
        return self.executor.submit(Plan(items))

    def verbs(self) -> list[tuple[str, str]]:
        return [(call.verb, call.name) for call in self.kube.writes()]


def at_version(job: Any, version: str) -> Any:
    return replace(job, metadata=replace(job.metadata, resource_version=version))


def status_item(job: Any, *notes: EventNote) -> WriteStatus:
    return WriteStatus(job, with_status(job, phase=JobPhase.RUNNING).status, notes)


def create_item(job: Any, rank: int = 0) -> CreatePod:
    return CreatePod(job, rank, Settings())


class PlacingBench(ExecutorBench):
    """With pods that record placements."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[GPUJob] = []
        self.records = PlacementRecords(self.shown.append)
        self.executor._runner._placements = self.records

    @property
    def is_withdrawn(self) -> bool:
        """The job is shown as it is stored, after it was shown as placed."""
        shown = [job.status.placement is not None for job in self.shown]
        return shown == [True, False] and self.records.uids == ()


def placement(bench: ExecutorBench) -> WriteStatus:
    """The first placement of a job that the API server has."""
    job = make_job()
    stored = bench.kube.put(JOBS, job_manifest(job))
    job = at_version(job, stored["metadata"]["resourceVersion"])
    then = placed(job)
    pod = CreatePod(then, 0, Settings(), record=record_of(then))
    return WriteStatus(job, then.status, (EventNote("Placed", "on n0"),), pod)
