"""A job that a full ResourceQuota refuses says how full it is, and what jobs have of it."""

import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.act.quota_figures import with_quota_figures
from gpujob_operator.decide.model.pod_requests import PodRequests

POD = PodRequests(cpu_milli=1500, memory_bytes=2 * GIB)


@pytest.mark.parametrize(
    ("requested", "used", "limited", "figures"),
    [
        ("pods=1", "pods=10", "pods=10", "pods 10 of 10 used (3 by pods of GPUJobs)"),
        (
            "cpu=2,requests.memory=2Gi",
            "cpu=8,requests.memory=15Gi",
            "cpu=8,requests.memory=16Gi",
            "cpu 8 of 8 used (4.5 by pods of GPUJobs), "
            "requests.memory 15Gi of 16Gi used (6 GiB by pods of GPUJobs)",
        ),
        # Nobody knows what limits pods have, and whose finished pods are counted.
        ("limits.cpu=1,count/pods=1", "limits.cpu=4,count/pods=9", "limits.cpu=4,count/pods=9", ""),
    ],
)
def test_the_figures_are_behind_the_servers_words(
    requested: str, used: str, limited: str, figures: str
) -> None:
    words = (
        f'pods "a-1-0" is forbidden: exceeded quota: small, requested: {requested}, used: {used}, '
        f"limited: {limited}"
    )
    figures = figures or "limits.cpu 4 of 4 used, count/pods 9 of 9 used"
    assert with_quota_figures(words, [POD] * 3) == f"{words}; ResourceQuota small: {figures}"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "exceeded quota: compute",
        "failed quota: q: must specify limits.cpu for: worker",
        "exceeded quota: q, requested: x, used: y, limited: z",
    ],
)
def test_other_words_stay_as_they_are(words: str) -> None:
    assert with_quota_figures(words, [POD]) == words


def test_the_figures_are_few() -> None:
    many = ",".join(f"r{n}=1" for n in range(500))
    words = f"exceeded quota: q, requested: {many}, used: {many}, limited: {many}"
    assert with_quota_figures(words, ()).count(" of ") == 4
