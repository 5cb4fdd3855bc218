"""Pods that record the placement of their job, and a cache that has the job as it waits."""

from gpujob_api.gpujob import GPUJob
from gpujob_api.settings import Settings
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.placement_record import record_of
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.render.pod import worker_pod
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed
from tests.harness.clocks import FakeClock
from tests.harness.manifests import Manifest, job_manifest

CONFIGURATION = Configuration(report_url="http://operator:8080/report")
PENDING = make_job()
PLACED = placed(PENDING, ("n7", ("GPU-7",)))


def cache_of_pending(dirty: Dirty) -> Cache:
    """It has the pending job."""
    cache = Cache(dirty, Metrics(), FakeClock().now)
    see(cache, PENDING, 1)
    return cache


def see(cache: Cache, job: GPUJob, version: int) -> None:
    """The job is stored like this now."""
    cache.apply(Kind.JOB, "MODIFIED", job_manifest(job, version))


def recorded_pod(job: GPUJob = PLACED, uid: str = "uid-pod", version: int = 1) -> Manifest:
    """The pod that records the placement of the job, as the API server has it."""
    create = CreatePod(job, 0, Settings(), record=record_of(job))
    pod = worker_pod(create, CONFIGURATION)
    return pod | {"metadata": pod["metadata"] | {"uid": uid, "resourceVersion": str(version)}}
