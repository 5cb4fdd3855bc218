"""The order and the age of readings on one connection: no clock of a node is believed (I14)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import FieldError, encode
from gpujob_api.gpunode import GPU, GPUS_MAX, GPUNodeStatus
from gpujob_api.quantities import GIB
from gpujob_api.reading import ReadingHead, reading_text
from gpujob_operator.port.reading_session import SILENT_SECONDS_MIN, ReadingSession, TakenReading
from gpujob_operator.port.requests import BURST_MAX
from tests.harness.builders import make_gpu
from tests.harness.clocks import FakeClock
from tests.harness.odd_json import ODD_SCALARS, to_json

GPUS = (make_gpu("GPU-0"), make_gpu("GPU-1", index=1))


class _Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.session = ReadingSession("n0", "", self.clock.monotonic)
        self.session.greeting()
        self.dropped: list[str] = []
        self.sequence = 0

    def text(
        self, *gpus: GPU, since: float = 0.0, unchanged: tuple[str, ...] = (), **more: Any
    ) -> str:
        self.sequence += 1
        status = encode(GPUNodeStatus(gpus=gpus)) | more
        return reading_text(ReadingHead(self.sequence, since), status, unchanged)

    def take(self, text: str) -> TakenReading | None:
        return self.session.take(text, self.dropped.append)[1]

    def taken(self, *gpus: GPU, **more: Any) -> TakenReading:
        found = self.take(self.text(*gpus, **more))
        assert found is not None
        return found


@pytest.fixture
def bench() -> _Bench:
    return _Bench()


def test_a_reading_is_as_old_as_the_agent_says_by_its_own_stopwatch(bench: _Bench) -> None:
    bench.clock.advance(7.0)
    assert bench.taken(*GPUS, since=5.0).taken_at == bench.clock.monotonic() - 2.0


def test_a_reading_that_waited_for_a_frozen_operator_is_old(bench: _Bench) -> None:
    """It was sent 2 s after the reply, and lay in a buffer for a minute."""
    bench.taken(*GPUS)
    bench.clock.advance(62.0)
    assert bench.taken(*GPUS, since=2.0).taken_at == bench.clock.monotonic() - 60.0


def test_a_reading_from_before_the_connection_is_from_before(bench: _Bench) -> None:
    assert bench.taken(*GPUS, since=-25.0).taken_at == bench.clock.monotonic() - 25.0


def test_nothing_is_read_in_the_future(bench: _Bench) -> None:
    assert bench.taken(*GPUS, since=3600.0).taken_at == bench.clock.monotonic()


@pytest.mark.promise("I14")
@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 5), st.floats(0, 100), st.floats(0, 5)),
        min_size=1,
        max_size=15,
    )
)
def test_no_reading_looks_newer_than_it_is(steps: list[tuple[float, float, float, float]]) -> None:
    """Whatever the ways take, and whatever waits: reading, its way, and the reply's way."""
    bench = _Bench()
    replied_at = bench.clock.monotonic()
    for before, since_read, way, way_back in steps:
        bench.clock.advance(before)
        read_at = bench.clock.monotonic()
        bench.clock.advance(since_read + way + 0.2)
        taken = bench.taken(*GPUS, since=read_at - replied_at)
        assert taken.taken_at <= read_at + 1e-6
        bench.clock.advance(way_back)
        replied_at = bench.clock.monotonic()


@pytest.mark.parametrize("sequence", [0, 1, 3, 4])
def test_replayed_and_reordered_readings_are_refused(bench: _Bench, sequence: int) -> None:
    bench.taken(*GPUS)
    text = reading_text(ReadingHead(sequence, 0.0), encode(GPUNodeStatus(gpus=GPUS)))
    with pytest.raises(FieldError, match=r"reading\.sequence: must be 2; got"):
        bench.take(text)


def test_a_reading_of_another_connection_is_refused(bench: _Bench) -> None:
    texts = [bench.text(*GPUS) for _ in range(3)]
    for text in texts:
        bench.take(text)
    other = _Bench()
    with pytest.raises(FieldError):
        other.take(texts[2])


def test_what_did_not_change_need_not_be_sent(bench: _Bench) -> None:
    bench.taken(*GPUS)
    busy = make_gpu("GPU-1", index=1, ours=[("pod-a", GIB)])
    assert bench.taken(busy, unchanged=("GPU-0",)).status.gpus == (GPUS[0], busy)
    assert bench.taken(unchanged=("GPU-0", "GPU-1")).status.gpus == (GPUS[0], busy)
    assert bench.taken(unchanged=("GPU-1",)).status.gpus == (busy,), "GPU-0 is gone"


def test_who_knows_less_than_the_agent_believes_asks_for_all(bench: _Bench) -> None:
    """A new leader, or an operator that began anew."""
    reply, taken = bench.session.take(bench.text(unchanged=("GPU-0",)), bench.dropped.append)
    assert (reply.full, reply.sequence, taken) == (True, 1, None)
    assert bench.taken(*GPUS).status.gpus == GPUS


def test_an_absurd_gpu_is_left_out_until_it_is_told_anew(bench: _Bench) -> None:
    absurd = encode(GPUS[1]) | {"memoryUsedBytes": 10**15}
    status = encode(GPUNodeStatus()) | {"gpus": [encode(GPUS[0]), absurd]}
    taken = bench.take(reading_text(ReadingHead(1, 0.0), status))
    assert taken is not None
    assert (taken.status.gpus, bench.dropped) == (GPUS[:1], ["gpu"])
    bench.sequence = 1
    assert bench.taken(unchanged=("GPU-0", "GPU-1")).status.gpus == GPUS[:1]
    assert bench.taken(GPUS[1], unchanged=("GPU-0",)).status.gpus == GPUS


def test_no_node_has_more_gpus_than_a_node_may_have(bench: _Bench) -> None:
    many = tuple(make_gpu(f"GPU-{n}", index=n) for n in range(GPUS_MAX))
    bench.taken(*many)
    with pytest.raises(FieldError, match="65 GPUs, at most 64"):
        bench.taken(make_gpu("GPU-64", index=64), unchanged=tuple(gpu.uuid for gpu in many))


def test_a_flood_is_refused(bench: _Bench) -> None:
    for _ in range(int(BURST_MAX)):
        bench.taken(*GPUS)
    with pytest.raises(FieldError, match="more than 10 a second"):
        bench.taken(*GPUS)


def test_a_silent_connection_ends_in_time(bench: _Bench) -> None:
    assert bench.session.silent_seconds_max == SILENT_SECONDS_MIN
    bench.taken(*GPUS, sampleIntervalSeconds=12.0)
    assert bench.session.silent_seconds_max == 24.0


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": None},
        {"sinceReplySeconds": "soon"},
        {"sinceReplySeconds": float("nan")},
        {"sinceReplySeconds": 1e300},
        {"status": None},
        {"status": []},
        {"status": {"sampleIntervalSeconds": -1}},
        {"unchanged": "GPU-0"},
        {"unchanged": [5]},
        {"unchanged": ["GPU-0"] * 65},
    ],
)
def test_what_no_agent_sends_is_refused(bench: _Bench, change: dict[str, Any]) -> None:
    message = json.loads(bench.text(*GPUS)) | change
    with pytest.raises(FieldError, match=r"reading|status"):
        bench.take(to_json(message).decode())


@pytest.mark.parametrize("odd", [*ODD_SCALARS, [], {}], ids=str)
def test_odd_messages_raise_nothing_else(bench: _Bench, odd: object) -> None:
    for message in (odd, {"sequence": 1, "sinceReplySeconds": 0, "status": odd, "unchanged": odd}):
        with pytest.raises(FieldError):
            _Bench().take(to_json(message).decode())
    for part in ("gpus", "summary", "conditions", "observedAt"):
        one = _Bench()
        more: dict[str, Any] = {part: odd}
        try:
            one.take(one.text(**more))
        except FieldError:
            continue
