"""The grace that a worker is told is the one that it gets."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.settings import ENV_GRACE_SECONDS, Settings
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds, pod_grace_seconds, stop_seconds
from gpujob_operator.decide.model.plan import CreatePod, DeletePod
from gpujob_operator.decide.model.snapshot import PodView, Taint
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.pods import pod_view
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_job,
    make_node,
    make_report,
    make_snapshot,
    make_template,
    received,
    running,
    statuses,
)

CONFIGURATION = Configuration(termination_grace_seconds=30, termination_grace_seconds_max=900)


def job_of(asked: Any, **fields: Any) -> GPUJob:
    template = (
        make_template() if asked is None else make_template(terminationGracePeriodSeconds=asked)
    )
    return make_job(template=template, **fields)


def pods_of(job: GPUJob) -> tuple[PodView, ...]:
    """As rendered and read back."""
    manifests = [
        worker_pod(CreatePod(job, rank, Settings()), CONFIGURATION)
        for rank in range(job.spec.workers)
    ]
    for number, manifest in enumerate(manifests):
        manifest["metadata"]["uid"] = f"pod-{number}"
        manifest["spec"]["nodeName"] = "n0"
        manifest["status"] = {"phase": "Running"}
    return tuple(pod_view(manifest) for manifest in manifests)


@pytest.mark.promise("I13")
@pytest.mark.parametrize(
    ("asked", "grace"),
    [(None, 30), (600, 600), (5, 5), (1000, 900), (0, 1), (-3, 1), ("x", 30), (True, 30)],
)
def test_one_number_everywhere(asked: Any, grace: int) -> None:
    job = running(job_of(asked))
    manifest = worker_pod(CreatePod(job, 0, Settings()), CONFIGURATION)
    assert manifest["spec"]["terminationGracePeriodSeconds"] == grace
    told = {e["name"]: e.get("value") for e in manifest["spec"]["containers"][0]["env"]}
    assert told[ENV_GRACE_SECONDS] == str(grace)
    suspended = replace(job, spec=replace(job.spec, suspend=True))
    pods = pods_of(job)
    found = plan(make_snapshot(suspended, pods=pods, configuration=CONFIGURATION), after(1))
    status = statuses(found.items)["job"]
    assert status.stop is not None
    assert status.stop.deadline == after(1 + grace)
    stopping = replace(suspended, status=status)
    # However long the write took.
    found = plan(make_snapshot(stopping, pods=pods, configuration=CONFIGURATION), after(8))
    (delete,) = (item for item in found.items if isinstance(item, DeletePod))
    assert delete.grace_seconds == grace


def test_the_configured_maximum_bounds_the_default_too() -> None:
    configuration = Configuration(termination_grace_seconds=30, termination_grace_seconds_max=10)
    assert grace_seconds(make_job(), configuration) == 10


def test_a_pod_keeps_the_grace_that_it_was_made_with() -> None:
    """Another configuration came since."""
    job = running(job_of(600, suspend=True), phase=JobPhase.STOPPING)
    short = replace(CONFIGURATION, termination_grace_seconds_max=60)
    found = plan(make_snapshot(job, pods=pods_of(job), configuration=short), after(1))
    (delete,) = (item for item in found.items if isinstance(item, DeletePod))
    assert delete.grace_seconds == 600
    assert pod_grace_seconds(replace(delete.pod, grace_seconds=None), 7) == 7


def test_an_orphan_gets_its_own_grace() -> None:
    (pod,) = pods_of(running(job_of(600)))
    found = plan(make_snapshot(pods=(pod,)), after(30))
    assert [item.grace_seconds for item in found.items if isinstance(item, DeletePod)] == [600]


@pytest.mark.promise("I13")
def test_a_gang_is_asked_first_and_has_its_grace_afterwards() -> None:
    """I13: who did not hear the question gets all that it was told."""
    places = (("n0", ("GPU-0",)), ("n0", ("GPU-1",)))
    gpus = [make_gpu("GPU-0"), make_gpu("GPU-1", index=1)]
    job = running(job_of(600, workers=2, suspend=True), *places)
    assert stop_seconds(job, CONFIGURATION) == 900
    pods = pods_of(job)
    fields: dict[str, Any] = {
        "pods": pods,
        "gpus": gpus,
        "configuration": CONFIGURATION,
        "reports": (received(job, make_report()),),
    }
    status = statuses(plan(make_snapshot(job, **fields), after(0)).items)["job"]
    assert status.stop is not None
    assert status.stop.deadline - T0 == timedelta(seconds=900)
    job = replace(job, status=status)

    def deletes(at: float) -> list[int]:
        items = plan(make_snapshot(job, **fields), after(at)).items
        return [item.grace_seconds for item in items if isinstance(item, DeletePod)]

    assert deletes(299) == []
    assert deletes(300) == [600, 600]


def test_a_node_that_goes_away_cuts_it_short() -> None:
    job = running(job_of(600))
    pods = pods_of(job)
    goes = int(after(100).timestamp())
    node = make_node(taints=(Taint("gpujob.dev/reclaim", "NoSchedule", str(goes)),))
    fields: dict[str, Any] = {"pods": pods, "nodes": [node], "configuration": CONFIGURATION}
    status = statuses(plan(make_snapshot(job, **fields), after(10)).items)["job"]
    job = replace(job, status=status)
    found = plan(make_snapshot(job, **fields), after(20))
    assert [i.grace_seconds for i in found.items if isinstance(i, DeletePod)] == [80]
