"""What the operator decides and creates for one service, in small worlds."""

from typing import Any

from gpujob_api.codec import encode
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import gpuservice_from_manifest
from gpujob_api.meta import Metadata
from gpujob_api.serving import ServingReport
from tests.effects.effect import Json
from tests.harness.builders import T0
from tests.harness.jobs import job_manifest, set_field
from tests.harness.parking import ParkingWorld
from tests.harness.services import UID, ServiceWorld

Outcome = dict[str, Any]
LONG_SECONDS = 130


def service_of(fields: Json) -> GPUService:
    """A service as the operator reads it from the API server."""
    spec: Json = {"template": job_manifest()["spec"]["template"]}
    for path, value in fields.items():
        set_field(spec, path, value)
    service = gpuservice_from_manifest(
        {
            "apiVersion": "gpujob.dev/v1alpha1",
            "kind": "GPUService",
            "metadata": {"name": "answers", "namespace": "team", "uid": UID, "generation": 1},
            "spec": spec,
        }
    )
    metadata = Metadata("answers", "team", UID, "1", generation=1, creation_timestamp=T0)
    return GPUService(metadata, service.spec)


def created(service: GPUService) -> Outcome:
    """The jobs that are created for it."""
    world = ServiceWorld(service).run(5)
    return {name: encode(live.job.spec) for name, live in world.jobs.items()}


def under_load(service: GPUService) -> int:
    """How many replicas there are if those that answer are busy all the time."""
    world = ServiceWorld(service)
    world.report = lambda live: ServingReport(ready=True, busy_percent=100.0)
    return len(world.run(30).replicas())


def without_requests(service: GPUService) -> int:
    """How many replicas there are after two minutes without requests."""
    return len(ServiceWorld(service).run(LONG_SECONDS).replicas())


def parked(service: GPUService) -> int:
    """How many replicas are parked after two minutes without requests."""
    world = ParkingWorld(service)
    world.report = world.serving
    world.run(LONG_SECONDS)
    return len(world.parked)


def held(service: GPUService) -> int:
    """How many requests get 503 after a minute without a GPU."""
    world = ServiceWorld(service, start_seconds=lambda name: None)
    world.run(5).request()
    return world.run(60).expired
