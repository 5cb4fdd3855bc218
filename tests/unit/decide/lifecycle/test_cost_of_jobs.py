"""What a job costs stays known after its attempts, and is told where prices are."""

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.quantities import GIB
from gpujob_operator.decide.capacity.sites import NodeFacts, WorkerSite
from gpujob_operator.decide.lifecycle.cost import cost_so_far, cost_text
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_snapshot,
    reserve,
    running,
    with_status,
)

HOUR = 3600.0


def ended(
    job: GPUJob,
    *others: GPUJob,
    exit_code: int = 0,
    price: float | None = 2.5,
    at: float = HOUR,
) -> GPUJobStatus:
    """The status once the attempt has ended, which began at T0."""
    nodes = [make_gpu_node("n0", make_gpu(), at=at, price=price)]
    pods = [make_pod(job, exit_code=exit_code)]
    snapshot = make_snapshot(job, *others, pods=pods, gpu_nodes=nodes)
    for item in plan(snapshot, after(at)).items:
        if isinstance(item, WriteStatus) and item.job.metadata.uid == job.metadata.uid:
            return item.status
    raise AssertionError("nothing is decided of the job")


def test_a_finished_job_still_says_what_it_cost() -> None:
    status = ended(running(make_job()))
    assert status.phase is JobPhase.SUCCEEDED
    assert status.cost == 2.5
    assert status.summary.cost == "$2.50"


def test_attempts_are_added_up() -> None:
    job = running(make_job(), attempt=2, cost=1.25)
    status = ended(job, exit_code=144, at=2 * HOUR)
    assert status.phase is JobPhase.PENDING
    assert status.cost == 6.25
    assert status.summary.cost == "$6.25"


def test_what_ran_beside_it_is_not_paid_for() -> None:
    """By what both reserved."""
    job = running(make_job(), held=reserve(6 * GIB))
    other = running(make_job("other"), held=reserve(2 * GIB))
    assert ended(job, other).cost == pytest.approx(2.5 * 6 / 8)


def test_without_a_price_nothing_is_told() -> None:
    status = ended(running(make_job()), price=None)
    assert status.cost is None
    assert status.summary.cost == ""


def test_a_node_that_is_gone_costs_what_its_model_costs() -> None:
    job = running(make_job())
    assert job.status.placement is not None
    gone = (WorkerSite("n0", None, ()),)
    model = job.status.placement.gpu_model
    priced = Configuration(price_per_gpu_hour={model: 2.5})
    assert cost_so_far(job, gone, priced, HOUR) == 2.5
    assert cost_so_far(job, gone, Configuration(), HOUR) is None


def test_the_rate_while_it_runs_and_what_earlier_attempts_cost() -> None:
    job = running(make_job(), attempt=2, cost=1.25)
    facts = NodeFacts(None, None, None, 2.5)
    site = (WorkerSite("n0", facts, ()),)
    assert cost_text(job, job.status, site) == "$2.50/h after $1.25"
    first = with_status(job, cost=None)
    assert cost_text(first, first.status, site) == "$2.50/h"
    unknown = (WorkerSite("n0", facts._replace(price_per_gpu_hour=None), ()),)
    assert cost_text(first, first.status, unknown) == ""


def test_a_price_that_is_not_known_any_more_takes_nothing_back() -> None:
    status = ended(running(make_job(), attempt=2, cost=1.25), price=None)
    assert status.cost == 1.25
    assert status.summary.cost == "$1.25"
