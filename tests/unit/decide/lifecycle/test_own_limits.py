"""A pod that reaches a limit of its own template is the job's failure, and no interruption."""

from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpujob import JobPhase, StopReason
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome, judge
from gpujob_operator.decide.model.snapshot import PodPhase
from tests.harness.builders import T0, make_job, make_pod, running, with_status

OWN_STORAGE = (
    'Usage of EmptyDir volume "cache" exceeds the limit "200Gi". ',
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
    'Container worker exceeded its local ephemeral storage limit "1Gi". ',
)


def ended(exit_code: int | None, stop: StopReason | None = None, **pod: Any) -> Outcome:
    job = running(make_job())
    job = job if stop is None else with_status(job, phase=JobPhase.STOPPING, stop=stop)
    failed = make_pod(job, phase=PodPhase.FAILED, **pod)
    return judge(job, (make_pod(job, exit_code=exit_code, **pod) if exit_code else failed,))


@pytest.mark.parametrize("message", OWN_STORAGE)
def test_an_eviction_for_the_pods_own_use_is_the_jobs_failure(message: str) -> None:
    """I4: it would come again on every node."""
    outcome = ended(137, reason="Evicted", message=message)
    assert outcome.end is AttemptEnd.FAILED
    assert outcome.failure is not None
    assert message.strip() in outcome.failure.message


def test_an_eviction_for_the_nodes_sake_is_an_interruption() -> None:
    message = "The node was low on resource: memory. Container worker was using 5Gi"
    assert ended(137, reason="Evicted", message=message).end is AttemptEnd.INTERRUPTED


@pytest.mark.promise("I4")
@pytest.mark.parametrize("exit_code", [143, 137, None])
def test_a_deadline_of_the_template_is_a_failure(exit_code: int | None) -> None:
    """I4: it ends the job in the end."""
    outcome = ended(exit_code, reason="DeadlineExceeded")
    assert outcome.end is AttemptEnd.FAILED
    assert outcome.failure is not None
    assert "activeDeadlineSeconds" in outcome.failure.message


def test_a_limit_that_is_reached_while_we_stop_the_attempt_is_no_failure() -> None:
    stop = StopReason("NodeReclaimed", "the node goes", T0 + timedelta(seconds=30))
    assert ended(143, stop, reason="DeadlineExceeded").end is AttemptEnd.INTERRUPTED
