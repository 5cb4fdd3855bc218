"""The child process that simulates: its question, its answer, its limits."""

import asyncio
import io
import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpujob_api.gpujob import SharingMode
from gpujob_operator.decide.simulation.start_ranges import start_ranges
from gpujob_operator.forecast import child
from gpujob_operator.forecast.child import Calculation, CalculationError, calculate
from gpujob_operator.forecast.wire import PART, Question, parts_of, read_question
from tests.harness.builders import (
    after,
    make_job,
    make_pods,
    make_queue,
    make_snapshot,
    measured,
    running,
    with_status,
)
from tests.harness.waiting import eventually

NOW = after(10)
KNOWN = replace(measured(1, step=500), steps_total=10_500)
BUSY = with_status(
    running(make_job("busy", sharing=SharingMode.EXCLUSIVE), measurement=KNOWN), observed_at=NOW
)
SNAPSHOT = make_snapshot(
    BUSY,
    *(make_job(f"new-{n}", sharing=SharingMode.EXCLUSIVE, created=n) for n in range(2)),
    pods=make_pods(BUSY),
    queues=(make_queue(),),
)


def answering(text: str, code: int = 0) -> tuple[str, ...]:
    """A process that reads everything and answers this."""
    program = f"import sys; sys.stdin.buffer.read(); print({text!r}); sys.exit({code})"
    return sys.executable, "-c", program


def test_a_question_arrives_as_it_was() -> None:
    jobs = tuple(make_job(f"job-{n}") for n in range(3 * PART + 1))
    question = Question(replace(SNAPSHOT, jobs=jobs), NOW, 3.0)
    parts = list(parts_of(question))
    assert len(parts) > 5
    assert read_question(io.BytesIO(b"".join(parts))) == question


def test_parts_of_an_empty_snapshot() -> None:
    question = Question(make_snapshot(), NOW, 3.0)
    assert read_question(io.BytesIO(b"".join(parts_of(question)))) == question


@pytest.mark.slow
async def test_the_process_answers_as_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has time for all draws here, however busy the machine is."""
    monkeypatch.setattr(child, "SECONDS_MAX", 1000.0)
    program = "from gpujob_operator.forecast import __main__ as it; it.NICE = 0; it.main()"
    found = await calculate(SNAPSHOT, NOW, (sys.executable, "-c", program), wait_seconds=100.0)
    expected = start_ranges(SNAPSHOT, NOW)
    assert expected.intervals
    assert (found.intervals, found.draws) == (expected.intervals, expected.draws)
    assert found.seconds > 0


async def test_an_answer_is_read() -> None:
    answer = {
        "intervals": {"uid": {"earliest": "2026-01-01T00:00:00Z"}},
        "draws": 9,
        "seconds": 2.5,
    }
    found = await calculate(SNAPSHOT, NOW, answering(json.dumps(answer)))
    assert (found.draws, found.seconds) == (9, 2.5)
    assert found.intervals["uid"].latest is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "[" * 100_000, '{"intervals": 3}', "x" * 9),
        '{"intervals": {}, "draws": Infinity, "seconds": 1}',
    ],
    ids=lambda text: text[:40],
)
async def test_an_unreadable_answer_is_an_error(text: str) -> None:
    with pytest.raises(CalculationError, match="unreadable"):
        await calculate(SNAPSHOT, NOW, answering(text))


async def test_a_process_that_fails_is_an_error() -> None:
    with pytest.raises(CalculationError, match="ended with 3"):
        await calculate(SNAPSHOT, NOW, answering("{}", 3))


async def test_a_process_that_ends_at_once_is_an_error() -> None:
    large = replace(SNAPSHOT, jobs=tuple(make_job(f"job-{n}") for n in range(500)))
    with pytest.raises(CalculationError):
        await calculate(large, NOW, (sys.executable, "-c", "raise SystemExit(1)"))


async def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(CalculationError):
        await calculate(SNAPSHOT, NOW, ("/nonexistent/python",))


async def test_a_process_without_an_answer_is_killed() -> None:
    program = "import time; time.sleep(1000)"
    with pytest.raises(CalculationError, match="no answer within 0 s"):
        await calculate(SNAPSHOT, NOW, (sys.executable, "-c", program), wait_seconds=0.3)


def running_children() -> list[str]:
    """The processes that this one started and did not wait for, ended ones included."""
    me = os.getpid()
    found: list[str] = []
    for task in Path(f"/proc/{me}/task").iterdir():
        # A thread may end while its entry is read.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += (task / "children").read_text().split()
    return found


ENDLESS = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
HANGS = "import time; time.sleep(1000)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
HUNGRY = (
    "from gpujob_operator.forecast import __main__ as it; "
    "it.start_ranges = lambda *_, **__: bytes(it.DATA_BYTES_MAX); it.main()"
)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (ENDLESS, "the answer has more than 1048576 bytes"),
        (HANGS, "no answer within 3 s"),
        (KILLED, "ended with -9"),
        (HUNGRY, "ended with 1"),
    ],
    ids=["endless answer", "hangs", "killed", "too much memory"],
)
async def test_a_faulty_process_is_an_error_and_leaves_nothing(program: str, words: str) -> None:
    """A large snapshot, so that it is still being written when the process fails."""
    before, files = running_children(), len(os.listdir("/proc/self/fd"))
    large = replace(SNAPSHOT, jobs=tuple(make_job(f"job-{n}") for n in range(500)))
    for snapshot in (SNAPSHOT, large):
        wait_seconds = 3.0 if program in (ENDLESS, HANGS) else 60.0
        async with asyncio.timeout(50):
            with pytest.raises(CalculationError) as caught:
                await calculate(snapshot, NOW, (sys.executable, "-c", program), wait_seconds)
        assert snapshot is large or words in str(caught.value)
    assert running_children() == before
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= files + 1


async def test_a_cancelled_calculation_leaves_no_process() -> None:
    before = running_children()
    task = asyncio.ensure_future(calculate(SNAPSHOT, NOW, (sys.executable, "-c", HANGS)))
    await eventually(lambda: running_children() != before)
    task.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert running_children() == before


def test_an_empty_calculation_has_no_ranges() -> None:
    assert Calculation().intervals == {}
