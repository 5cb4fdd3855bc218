"""Runs the child process for one calculation, with limits on its time and its output."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.codec import decode
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import Interval
from gpujob_operator.forecast.wire import Question, parts_of

COMMAND = (sys.executable, "-m", "gpujob_operator.forecast")
# Processor time of a calculation, the start of the process included.
SECONDS_MAX = 10.0
# The same by the clock, on a machine that is busy.
WAIT_SECONDS_MAX = 120.0
ANSWER_BYTES_MAX = 1024**2


class CalculationError(Exception):
    """The child process gave no answer."""


@dataclass(frozen=True, slots=True)
class Calculation:
    """The answer. `seconds` is the processor time that it took."""

    intervals: Mapping[str, Interval] = field(default_factory=dict[str, Interval])
    draws: int = 0
    seconds: float = 0.0


async def calculate(
    snapshot: Snapshot,
    now: datetime,
    command: Sequence[str] = COMMAND,
    wait_seconds: float = WAIT_SECONDS_MAX,
) -> Calculation:
    """Returns the ranges of the snapshot. Raises `CalculationError`.

    The process has ended when this returns, also if it is cancelled.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=ANSWER_BYTES_MAX,
        )
    except OSError as error:
        raise CalculationError(str(error)) from None
    try:
        async with asyncio.timeout(wait_seconds):
            return await _answer(child, Question(snapshot, now, SECONDS_MAX))
    except TimeoutError:
        raise CalculationError(f"no answer within {wait_seconds:.0f} s") from None
    except OSError as error:
        raise CalculationError(str(error)) from None
    finally:
        if child.returncode is None:
            child.kill()
        # Reads the rest, because the end of a process is not seen before that of its pipe.
        await child.communicate()


async def _answer(child: asyncio.subprocess.Process, question: Question) -> Calculation:
    assert child.stdin is not None, "a pipe"
    assert child.stdout is not None, "a pipe"
    for part in parts_of(question):
        child.stdin.write(part)
        await child.stdin.drain()
        # A cycle may run between two parts.
        await asyncio.sleep(0)
    child.stdin.close()
    text = await _all_of(child.stdout)
    code = await child.wait()
    if code:
        raise CalculationError(f"the process ended with {code}")
    return _parsed(text)


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    text = b""
    while len(text) < ANSWER_BYTES_MAX and (more := await stream.read(ANSWER_BYTES_MAX)):
        text += more
    if len(text) >= ANSWER_BYTES_MAX:
        raise CalculationError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    return text


def _parsed(text: bytes) -> Calculation:
    try:
        data = json.loads(text)
        intervals = {
            str(uid): decode(Interval, one, "interval") for uid, one in data["intervals"].items()
        }
        return Calculation(intervals, int(data["draws"]), float(data["seconds"]))
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise CalculationError(f"the answer is unreadable: {error}") from None
