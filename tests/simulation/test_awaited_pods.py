"""Whether a process still waits for a pod that it asked for."""

from dataclasses import dataclass
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import make_job, placed
from tests.harness.manifests import pod_manifest
from tests.simulation.api_server import OtherKind, Revision
from tests.simulation.awaited_pods import AwaitedPods

WAITS, PLACED = make_job(), placed(make_job())
ASKED_AT, COMES_AT = 20.0, 25.0


@dataclass
class _Api:
    """Process `one` leads, and asked for the pod at `asked_at` the last time."""

    asked_at: float = ASKED_AT

    def seconds_since_asked(self, pod: object, by: str) -> float:
        return COMES_AT - self.asked_at

    def list(self, kind: OtherKind) -> list[Any]:
        return [{"spec": {"holderIdentity": "one"}}]


def _is_given_up(
    *writes: tuple[float, str, GPUJob], asked_at: float = ASKED_AT, by: str = "one"
) -> bool:
    api: Any = _Api(asked_at)
    awaited = AwaitedPods(api)
    for at, writer, job in writes:
        awaited.written(Revision(1, at, Kind.JOB, "MODIFIED", {}, None, writer, at), job)
    pod = pod_manifest(WAITS)
    return awaited.are_given_up(
        Revision(2, COMES_AT, Kind.POD, "ADDED", pod, None, by, 5.0), WAITS.metadata.uid
    )


def test_the_leader_that_asked_a_moment_ago_waits_for_the_pod() -> None:
    assert not _is_given_up()
    assert _is_given_up(asked_at=10.0)
    assert _is_given_up(by="two")


@pytest.mark.parametrize(
    ("writes", "is_given_up"),
    [
        ([(22.0, "one", WAITS)], True),
        ([(18.0, "one", WAITS)], False),
        ([(22.0, "two", WAITS)], False),
        ([(22.0, "one", WAITS), (23.0, "one", PLACED)], False),
    ],
    ids=["since", "before", "by-another", "placed-again"],
)
def test_what_it_wrote_since_counts(
    writes: list[tuple[float, str, GPUJob]], is_given_up: bool
) -> None:
    assert _is_given_up(*writes) is is_given_up
