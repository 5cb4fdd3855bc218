"""Bounds of the number of replicas, and the messages of a gate."""

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.gate import GateReply, GateReport
from gpujob_api.gpuservice import Replicas


@pytest.mark.parametrize(
    ("replicas", "most", "may_be_none"),
    [
        (Replicas(), 1, False),
        (Replicas(3), 3, False),
        (Replicas(0), 1, True),
        (Replicas(0, 4), 4, True),
    ],
)
def test_the_number_of_replicas(replicas: Replicas, most: int, may_be_none: bool) -> None:
    assert (replicas.most, replicas.may_be_none) == (most, may_be_none)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"minimum": -1}, "minimum"),
        ({"minimum": 0, "maximum": 0}, "maximum"),
        ({"minimum": 3, "maximum": 2}, "maximum"),
        ({"stop_after_seconds": 0}, "stop"),
        ({"cold_start_seconds": 0}, "cold"),
        ({"cold_start_seconds": 3601}, "cold"),
        ({"minimum": 1, "park_after_seconds": 60}, "parkAfterSeconds: needs minimum 0"),
        ({"minimum": 0, "park_after_seconds": 601}, "not be above stopAfterSeconds, 600; got 601"),
    ],
)
def test_what_is_out_of_bounds_is_named(fields: dict[str, int], named: str) -> None:
    with pytest.raises(FieldError, match=named):
        Replicas(**fields)


def test_messages_of_a_gate_are_read_as_they_were_written() -> None:
    report = GateReport(7, held=2, forwarded=1, idle_seconds=0.5)
    assert GateReport.from_text(report.to_text()) == report
    reply = GateReply(("10.0.0.7:8000",), 60.0)
    assert GateReply.from_text(reply.to_text()) == reply
    longest = GateReport.from_text('{"sequence": 1, "idleSeconds": 1e9}')
    assert longest.idle_seconds == 10**7, "it is cut, not refused"
