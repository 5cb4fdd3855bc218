"""A server is neither hung without requests nor unprotected, and it is hung if it answers none."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.optimize import Optimize
from gpujob_api.report import Report, Timing, WorkerPhase
from gpujob_api.serving import ServingReport
from gpujob_api.settings import Task
from gpujob_operator.decide.measurement.progress import is_hung, with_report
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.protection import why_unprotected
from tests.harness.builders import after, make_job, make_report, measured, received, running

CONFIGURATION = Configuration()


def server(step: int = 10) -> GPUJob:
    job = make_job(optimize=Optimize(task=Task.SERVING), claim=None)
    return running(job, measurement=measured(1 << 30, step=step))


def report(step: int = 10, queued: int = 0) -> Report:
    serving = ServingReport(ready=True, queued=queued)
    timing = Timing(0.01, 1 << 30)
    return make_report(
        phase=WorkerPhase.SERVING, step=step, serving=serving, task=Task.SERVING, current=timing
    )


@pytest.mark.parametrize(
    ("given", "hung"),
    [(report(), False), (report(step=11, queued=5), False), (report(queued=5), True)],
)
def test_only_a_server_that_leaves_requests_unanswered_is_hung(given: Report, hung: bool) -> None:
    job = server()
    status = with_report(job, job.status, received(job, given, at=1000), CONFIGURATION)
    assert (is_hung(status, 600, after(1001)) is not None) is hung


def test_a_server_loses_nothing_by_an_interruption() -> None:
    job = server()
    assert why_unprotected(job, CONFIGURATION) is None
    training = replace(job, spec=replace(job.spec, optimize=Optimize()))
    assert why_unprotected(training, CONFIGURATION) is not None
