"""A verdict on a template ends by the clock of planning, whatever the operator's machine says."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.act.events import EventPoster
from gpujob_operator.act.executor import Executor
from gpujob_operator.client.api_errors import ApiError
from gpujob_operator.client.kube import JOBS
from gpujob_operator.decide.model.plan import EventNote, Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.leadership.cache_sync import Mandate
from gpujob_operator.options import parse_arguments, run_options
from gpujob_operator.run import Operator
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, make_template, placed
from tests.harness.executor_bench import at_version
from tests.harness.fake_kube import FakeKube
from tests.harness.manifests import job_manifest

pytestmark = pytest.mark.promise("I4")

HOUR = 3600.0
PAUSE_SECONDS = 10.0
DRAIN_SECONDS = 5.0
# What a slow machine may take; an hour is far more.
SLACK_SECONDS = 60.0


class Leader:
    """An operator that leads, as `run.py` builds it, on a machine whose clock is wrong."""

    def __init__(self, ahead_seconds: float) -> None:
        self.kube = FakeKube()
        self.kube.put_claims("checkpoints")
        self.operator = Operator(run_options(parse_arguments(["run"]), "me"), plan, plan_services)
        cluster = datetime.now(UTC) - timedelta(seconds=ahead_seconds)
        self.operator._clock.heard(format_datetime(cluster))

    async def lead(self, poster: EventPoster | None = None) -> Executor:
        leadership = self.operator._leadership(self.kube)
        assert await leadership.try_once()
        self.operator._sync.synced = True
        poster = poster or EventPoster(self.kube, Metrics(), lambda: 0.0)
        return self.operator._executor(self.kube, Mandate(leadership, self.operator._sync), poster)

    def placement(self, name: str, *notes: EventNote) -> WriteStatus:
        job = make_job(name, template=make_template())
        stored = self.kube.put(JOBS, job_manifest(job))
        job = at_version(job, stored["metadata"]["resourceVersion"])
        return WriteStatus(job, placed(job).status, notes)

    def seconds_left(self, executor: Executor, *jobs: GPUJob) -> list[float]:
        """For how long planning takes the templates of these jobs for refused."""
        refused = executor.assume(Snapshot(jobs=jobs)).refused_templates
        now = self.operator._clock.now()
        return [(one.until - now).total_seconds() for one in refused]

    def tries(self) -> int:
        return [call.verb for call in self.kube.writes()].count("try")


@pytest.mark.parametrize("ahead_seconds", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_refusal_holds_for_the_pause_by_the_clusters_time(ahead_seconds: float) -> None:
    """I4: a job does not wait an hour to be tried again, and is not decided anew all the while."""
    leader = Leader(ahead_seconds)
    executor = await leader.lead()
    leader.kube.fail("try", "pods", ApiError(422, "Invalid", "no"))
    first, second = leader.placement("first"), leader.placement("second")
    for item in (first, second):
        executor.submit(Plan((item,)))
        assert await executor.drain(DRAIN_SECONDS)
    assert leader.tries() == 1
    left = leader.seconds_left(executor, first.job, second.job)
    assert len(left) == 2
    assert all(abs(seconds - PAUSE_SECONDS) < SLACK_SECONDS for seconds in left), left


@pytest.mark.parametrize("ahead_seconds", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_events_have_the_clusters_time(ahead_seconds: float) -> None:
    leader = Leader(ahead_seconds)
    poster = EventPoster(leader.kube, Metrics(), lambda: 0.0)
    executor = await leader.lead(poster)
    note = EventNote("Scheduled", "placed")
    executor.submit(Plan((leader.placement("job", note),)))
    assert await executor.drain(DRAIN_SECONDS)
    at = datetime.fromisoformat(poster._queue.get_nowait()["lastTimestamp"])
    assert abs((at - leader.operator._clock.now()).total_seconds()) < SLACK_SECONDS
