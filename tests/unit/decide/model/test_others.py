"""A job's status and events name jobs of its own namespace only."""

from collections.abc import Iterator, Sequence

import pytest

from gpujob_api.codec import encode
from gpujob_operator.decide.model.others import NAMED_MAX, name_for, names_for
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    make_gpu,
    make_job,
    make_pods,
    make_snapshot,
    running,
)

READER = make_job("reader", namespace="team")


@pytest.mark.parametrize(
    ("namespaces", "text"),
    [
        (("team",), "team/j0"),
        (("team", "team"), "team/j0, team/j1"),
        (("team",) * (NAMED_MAX + 2), "team/j0, team/j1, team/j2 and 2 more"),
        (("rival",), "1 job of other namespaces"),
        (("rival", "team", "rival"), "team/j1 and 2 jobs of other namespaces"),
        (("rival", *("team",) * 4), "team/j1, team/j2, team/j3 and 1 more and 1 job of other "),
    ],
)
def test_jobs_of_other_namespaces_are_counted(namespaces: Sequence[str], text: str) -> None:
    jobs = [make_job(f"j{n}", namespace=name) for n, name in enumerate(namespaces)]
    assert names_for(READER, jobs).startswith(text)
    assert "rival" not in names_for(READER, jobs)


def test_one_job_is_named_to_its_own_namespace() -> None:
    other = make_job("other", namespace="team")
    assert name_for(READER, other) == "team/other"
    assert name_for(make_job("reader", namespace="rival"), other) == "a job of another namespace"


def texts(decided: Plan, namespace: str) -> Iterator[str]:
    """All that the plan tells a namespace."""
    for item in decided.items:
        if isinstance(item, WriteStatus) and item.job.metadata.namespace == namespace:
            yield str(encode(item.status))
            yield from (note.message for note in item.events)


def preempted(victims: str) -> Plan:
    low = running(make_job("low", namespace=victims))
    high = make_job("high", namespace="rival", priority=5, created=1)
    return plan(make_snapshot(low, high, pods=make_pods(low), gpus=[make_gpu()]), T0)


def test_neither_a_victim_nor_its_preemptor_reads_the_others_name() -> None:
    within = preempted("rival")
    assert any(
        "stopped for rival/high (priority 5 over 0)" in text for text in texts(within, "rival")
    )
    decided = preempted("team")
    told = [*texts(decided, "team"), *texts(decided, "rival")]
    assert any("stopped for a job of another namespace (priority 5 over 0)" in one for one in told)
    assert any("waiting for 1 job of other namespaces to stop" in one for one in told)
    assert not any("rival" in one for one in texts(decided, "team"))
    assert not any("team" in one or "low" in one for one in texts(decided, "rival"))
