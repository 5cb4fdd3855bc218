"""Which records of pods do not hold beside what other jobs have been given since."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, ReservationSource, Sharing, SharingMode
from gpujob_operator.decide.model.crowded_records import crowded_out
from tests.harness.builders import GIB, T0, make_job, placed, with_status

CAPACITY = {("n0", "GPU-0"): 40 * GIB}
GROUPS = {"ours": "group a", "theirs": "group a", "strangers": "queue strangers"}


def held(
    name: str,
    seconds: float = 0.0,
    gibibytes: int = 10,
    *,
    namespace: str = "team",
    queue: str = "ours",
    alone: bool = False,
    source: ReservationSource = ReservationSource.MEASURED,
    gpu: str = "GPU-0",
) -> GPUJob:
    """A job that was placed on the GPU so many seconds later than others."""
    job = make_job(name)
    job = replace(
        job,
        metadata=replace(job.metadata, uid=f"uid-{name}", namespace=namespace),
        spec=replace(job.spec, sharing=Sharing(SharingMode.SHARED), queue=queue),
    )
    job = placed(job, ("n0", (gpu,)))
    assert job.status.reservation is not None
    reservation = replace(
        job.status.reservation,
        memory_bytes=gibibytes * GIB,
        exclusive=alone,
        source=source,
    )
    return with_status(
        job, reservation=reservation, attempt_started_at=T0 + timedelta(seconds=seconds)
    )


def test_a_record_that_fits_beside_the_others_holds() -> None:
    others = [held("b", 5), held("c", 6, 20)]
    assert crowded_out([held("a")], others, CAPACITY, GROUPS) == frozenset()
    assert crowded_out([held("a")], [], {}, {}) == frozenset()


@pytest.mark.parametrize(
    ("queue", "namespace"),
    [("theirs", "other"), ("ours", "other"), ("strangers", "team")],
    ids=["one sharing group", "one queue", "one namespace"],
)
def test_a_record_holds_beside_a_later_job_that_may_share_with_it(
    queue: str, namespace: str
) -> None:
    later = held("b", 5, namespace=namespace, queue=queue)
    assert crowded_out([held("a")], [later], CAPACITY, GROUPS) == frozenset()


@pytest.mark.parametrize(
    ("record", "other"),
    [
        (held("a", gibibytes=21), held("b", 5, 20)),
        (held("a"), held("b", 5, alone=True)),
        (held("a", alone=True), held("b", 5)),
        (held("a", source=ReservationSource.WHOLE_GPU), held("b", 5)),
        (held("a"), held("b", 5, namespace="other", queue="strangers")),
    ],
    ids=["memory", "beside one alone", "alone", "whole", "another sharing group"],
)
def test_a_record_that_does_not_fit_beside_a_status_is_crowded_out(
    record: GPUJob, other: GPUJob
) -> None:
    assert crowded_out([record], [other], CAPACITY, GROUPS) == {"uid-a"}


@pytest.mark.parametrize(
    "earlier",
    [
        held("b", namespace="other", queue="strangers"),
        held("b", gibibytes=40),
        held("b", alone=True),
    ],
    ids=["another sharing group", "memory", "alone"],
)
def test_a_job_that_was_placed_earlier_crowds_nothing_out(earlier: GPUJob) -> None:
    """The record's own leader decided that both may be there, or that the other one has ended."""
    assert crowded_out([held("a", 5)], [earlier], CAPACITY, GROUPS) == frozenset()


def test_what_earlier_jobs_hold_counts_beside_a_later_one() -> None:
    others = [held("b", gibibytes=20), held("c", 6, 20)]
    assert crowded_out([held("a", 5)], others, CAPACITY, GROUPS) == {"uid-a"}


def test_of_two_records_the_newer_one_holds() -> None:
    records = [held("a", 1, 30), held("b", 2, 30), held("c", 3, 5)]
    assert crowded_out(records, [], CAPACITY, GROUPS) == {"uid-a"}


def test_jobs_that_are_over_and_other_gpus_crowd_nothing_out() -> None:
    done = with_status(held("b", 5, 40), phase=JobPhase.SUCCEEDED)
    going = held("c", 5, 40)
    going = replace(going, metadata=replace(going.metadata, deletion_timestamp=T0))
    elsewhere = held("d", 5, 40, gpu="GPU-1")
    assert crowded_out([held("a")], [done, going, elsewhere], CAPACITY, GROUPS) == frozenset()
