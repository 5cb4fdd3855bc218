"""What is added is taken away again, whatever is there besides."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.capacity.job_usage import (
    JobUsage,
    usage_of,
    usage_of_gone,
    usage_of_orphans,
)
from gpujob_operator.decide.capacity.usage import ClusterUsage
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import GonePod, PodView
from gpujob_operator.decide.model.workers import job_pods_of
from tests.harness.builders import T0, make_job, make_pod, placed, running


def usage(job: GPUJob, requests: PodRequests, *pods: PodView) -> JobUsage:
    return usage_of(job, job_pods_of(job, pods), requests)


def some_holdings() -> list[JobUsage]:
    """Of jobs that share GPUs, pods that are left over, and one that finished and was deleted."""
    one, other = running(make_job("one")), running(make_job("other"), ("n0", ("GPU-0", "GPU-1")))
    starting = placed(make_job("starting"), phase=JobPhase.STARTING)
    done = placed(make_job("done"), phase=JobPhase.SUCCEEDED)
    ended = make_pod(done, exit_code=0)
    return [
        usage(one, PodRequests(1000, 5), make_pod(one)),
        usage(other, PodRequests(1000, 5), make_pod(other), make_pod(other, attempt=0)),
        usage(starting, PodRequests(2000, 7)),
        usage(done, PodRequests(), ended),
        usage_of_orphans((make_pod(one, attempt=9),)),
        usage_of_gone(GonePod(ended.uid, T0, ended.gpus)),
    ]


def contents(holdings: ClusterUsage) -> tuple[Any, ...]:
    ended = {uid: sorted(map(repr, pods)) for uid, pods in holdings.ended.items()}
    return (
        holdings.tenants,
        holdings.owners,
        holdings.gpus_of_stale_pods,
        holdings.not_yet_bound,
        holdings.bound,
        ended,
    )


@given(st.permutations(range(6)), st.permutations(range(6)), st.integers(0, 6))
def test_what_is_added_can_be_taken_away_in_any_order(
    order: list[int], back: list[int], kept: int
) -> None:
    every = some_holdings()
    holdings, expected = ClusterUsage(), ClusterUsage()
    for index in order:
        holdings.add(every[index])
    stay = set(back[:kept])
    for index in back[kept:]:
        holdings.remove(every[index])
    for index in sorted(stay):
        expected.add(every[index])
    assert contents(holdings) == contents(expected)


def test_a_pod_that_finished_and_was_deleted_is_ended_until_neither_is_told() -> None:
    *_, finished, _, deleted = some_holdings()
    holdings = ClusterUsage()
    holdings.add(finished)
    holdings.add(deleted)
    (uid,) = holdings.ended
    holdings.remove(finished)
    assert set(holdings.ended) == {uid}
    holdings.remove(deleted)
    assert not holdings.ended


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), max_size=12))
def test_whatever_is_taken_away_nothing_raises(added: list[int], removed: list[int]) -> None:
    every = some_holdings()
    holdings = ClusterUsage()
    for index in added:
        holdings.add(every[index])
    for index in removed:
        holdings.remove(every[index])
