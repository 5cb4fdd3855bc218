"""A training joins the GPU of a service once the load of its last minutes leaves room."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, SharingMode
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import GIB
from gpujob_api.serving import ServingReport
from gpujob_api.settings import Task
from gpujob_operator.decide.model.snapshot import GPUUsage
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_queue,
    make_report,
    make_snapshot,
    measured,
    received,
    reserve,
    running,
    statuses,
    used,
    with_status,
)

AT = 60.0
# What is predicted of two jobs that use more than 95 % together (`slowdown_law`).
ABOVE_FULL_PERCENT = 27
QUIET, BUSY = used(GIB, 5.0, 150, may_fall=True), used(GIB, 90.0, 200)


def replica(max_slowdown_percent: int) -> GPUJob:
    """A replica that was measured while it started."""
    job = make_job(
        "replica",
        optimize=Optimize(task=Task.SERVING),
        max_slowdown_percent=max_slowdown_percent,
    )
    known = replace(measured(GIB, utilization_percent=90.0), current=None)
    return running(job, held=reserve(2 * GIB, utilization_percent=90.0), measurement=known)


def training(max_slowdown_percent: int, percent: float | None) -> GPUJob:
    """A training that waits. Its use is `percent`, or unknown."""
    job = make_job(
        "training",
        memory_bytes=4 * GIB,
        sharing=SharingMode.SHARED,
        max_slowdown_percent=max_slowdown_percent,
    )
    return job if percent is None else with_status(job, measurement=measured(GIB, 0, percent))


def decided(*jobs: GPUJob, usage: GPUUsage) -> dict[str, GPUJobStatus]:
    service = jobs[0]
    pod = make_pod(service, ready=True)
    report = make_report(serving=ServingReport(ready=True), current=None, step=0)
    snapshot = make_snapshot(
        *jobs,
        pods=[pod],
        gpu_nodes=[make_gpu_node("n0", make_gpu(ours=[(pod.uid, GIB)]), at=AT)],
        queues=[make_queue()],
        usage={(service.metadata.uid, 1): usage},
        reports=[received(service, report, AT)],
    )
    return statuses(plan(snapshot, after(AT)).items)


@pytest.mark.parametrize(
    ("usage", "max_slowdown_percent", "percent", "joins"),
    [
        (QUIET, 10, 60.0, True),
        (used(GIB, 5.0, 20), 10, 60.0, False),  # its load may be in a pause
        (used(GIB, 60.0, 150, may_fall=True), 10, 60.0, False),
        (BUSY, 10, 60.0, False),
        (QUIET, ABOVE_FULL_PERCENT - 1, None, False),
        (QUIET, ABOVE_FULL_PERCENT, None, True),
        (BUSY, ABOVE_FULL_PERCENT, None, False),
    ],
)
def test_it_joins_if_the_load_of_the_last_minutes_leaves_room(
    usage: GPUUsage, max_slowdown_percent: int, percent: float | None, joins: bool
) -> None:
    service = replica(max_slowdown_percent)
    waiting = training(max_slowdown_percent, percent)
    found = decided(service, usage=usage).get("replica", service.status)
    # The reservation is in force from the next cycle on.
    after_first = replace(service, status=found)
    second = decided(after_first, waiting, usage=usage)
    assert (second["training"].placement is not None) is joins
