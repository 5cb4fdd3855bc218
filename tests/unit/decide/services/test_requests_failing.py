"""A service whose model fails for most requests is not ready, and its replicas go on."""

from dataclasses import replace

import pytest

from gpujob_api.gpuservice import Replicas
from gpujob_api.serving import RequestLatency, ServingReport
from tests.harness.builders import make_template
from tests.harness.services import ServiceWorld, make_service

ERROR = "RuntimeError: mat1 and mat2 shapes cannot be multiplied"


def reported(requests: int, failed: int, since_start: int | None = None) -> ServingReport:
    return ServingReport(
        ready=True,
        recent_requests=requests,
        recent_failed=failed,
        failed=failed if since_start is None else since_start,
        requests_per_second=1.0,
        within_objective_percent=25.0,
        latency=RequestLatency(1.0, 2.0, 3.0),
        recent_error=ERROR,
    )


def scene_of(requests: int, failed: int) -> ServiceWorld:
    """Two replicas that answer, one of them with this report."""
    scene = ServiceWorld(make_service(replicas=Replicas(2))).run(10)
    answers(scene, requests, failed)
    return scene


def answers(scene: ServiceWorld, requests: int, failed: int) -> None:
    first = scene.ready()[0].job.metadata.name
    scene.report = lambda live: (
        reported(requests, failed) if live.job.metadata.name == first else ServingReport(ready=True)
    )


def ready(scene: ServiceWorld) -> tuple[str, str]:
    return scene.condition("Ready")[:2]


@pytest.mark.parametrize(
    ("requests", "failed", "reason"),
    [
        (20, 11, "RequestsFailing"),
        (20, 10, "ReplicasReady"),
        (19, 19, "ReplicasReady"),
        (1000, 501, "RequestsFailing"),
    ],
)
def test_more_than_half_of_at_least_20_requests(requests: int, failed: int, reason: str) -> None:
    scene = scene_of(requests, failed).run(1)
    assert ready(scene) == ("False" if reason == "RequestsFailing" else "True", reason)


def test_the_message_has_the_numbers_the_error_and_the_next_step() -> None:
    scene = scene_of(40, 30).run(1)
    message = scene.condition("Ready")[2]
    assert message.startswith("2 of 2 replicas answer requests, but 30 of the last 40 requests")
    assert f"failed: {ERROR}; correct the script or the model and edit the GPUService" in message
    failing = scene.ready()[0].job.metadata
    log = f"(kubectl gpujob logs {failing.name} -n {failing.namespace} has a traceback)"
    assert message.endswith(log)
    assert scene.status.summary.reason == "the model fails for most requests"


def test_the_column_has_the_failures_of_the_last_minute_as_its_other_figures() -> None:
    scene = scene_of(40, 30).run(11)
    assert scene.status.summary.latency.endswith(" ms, 30 failed")
    scene.report = lambda live: reported(40, 0, since_start=30)
    scene.run(11)
    assert scene.status.summary.latency.endswith("25.0 % within 100 ms")
    assert scene.status.traffic is not None
    assert scene.status.traffic.failed == 60


def test_it_removes_and_creates_nothing() -> None:
    scene = scene_of(40, 40)
    before = list(scene.created)
    scene.run(900)
    assert scene.created == before
    assert len(scene.ready()) == 2
    assert scene.status.failures == 0
    assert scene.status.summary.ready == "2/2"


def test_it_ends_once_half_of_the_requests_succeed_and_does_not_alternate_before() -> None:
    scene = scene_of(40, 40).run(1)
    answers(scene, 3, 2)
    assert ready(scene.run(1)) == ("False", "RequestsFailing")
    answers(scene, 4, 2)
    assert ready(scene.run(1)) == ("True", "ReplicasReady")
    answers(scene, 3, 2)
    assert ready(scene.run(1)) == ("True", "ReplicasReady")


def test_it_lasts_through_a_time_without_requests() -> None:
    scene = scene_of(40, 30).run(1)
    message = scene.condition("Ready")[2]
    answers(scene, 0, 0)
    assert ready(scene.run(600)) == ("False", "RequestsFailing")
    assert scene.condition("Ready")[2] == message
    answers(scene, 1, 0)
    assert ready(scene.run(1)) == ("True", "ReplicasReady")


def test_a_service_that_never_had_requests_is_ready() -> None:
    assert ready(scene_of(0, 0).run(1)) == ("True", "ReplicasReady")


def test_it_ends_once_all_replicas_are_newer() -> None:
    scene = scene_of(40, 40).run(1)
    answers(scene, 0, 0)
    scene.start_seconds = lambda name: 10.0
    scene.edit(template=make_template(command=("corrected",)))
    assert ready(scene.run(5)) == ("False", "RequestsFailing")
    scene.run(60)
    assert ready(scene) == ("True", "ReplicasReady")


def test_it_ends_with_the_attempt_of_the_only_replica() -> None:
    scene = ServiceWorld(make_service(replicas=Replicas(1))).run(10)
    name = scene.ready()[0].job.metadata.name
    answers(scene, 40, 40)
    scene.run(1)
    scene.report = lambda live: ServingReport(ready=True)
    scene.interrupt(name, grace_seconds=1, back_seconds=1)
    assert ready(scene.run(20)) == ("True", "ReplicasReady")


def test_failures_that_continue_are_written_at_intervals() -> None:
    scene = scene_of(40, 40).run(1)
    written = 0
    for second in range(100):
        answers(scene, 40 + second, 40 + second)
        written += scene.tick().status is not None
    assert 5 <= written <= 11
    assert "139 of the last 139" in scene.run(10).condition("Ready")[2]


def test_a_replica_that_is_not_ready_does_not_count() -> None:
    scene = scene_of(40, 40).run(1)
    live = scene.ready()[0]
    live.report = replace(reported(40, 40), ready=False)
    scene.report = lambda live: reported(5, 0)
    live.ready, live.ready_at = False, None
    assert scene.run(1).condition("Ready")[1] == "ReplicasStarting"
