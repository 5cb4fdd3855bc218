"""Starts the programs, gives them turns, and collects what their blocks took."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bench.turns.participant import VARIABLE, Assignment

ROOT = Path(__file__).resolve().parents[2]
ERROR_CHARACTERS_MAX = 300
GRACE_SECONDS = 20.0
ENDED = "ended"
OUT_OF_TIME = "not run: out of time"


class EndedError(Exception):
    """A program ended, or said nothing, when it should have run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A program to take part: how it is started, and how it is to behave."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    free_steps: int | None = 20
    fence_bytes: int | None = None
    # The checkout whose product it runs under.
    checkout: Path = ROOT
    # Where the worker saves once a block, and is timed.
    saves: Path | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """One block of steps: its round, seconds by the clock and the processor's, the peak so far, and
    what a checkpoint took where one was written.
    """

    round: int
    seconds: float
    processor_seconds: float
    peak_bytes: int
    saved: Mapping[str, float] = field(default_factory=dict[str, float])


class Program:
    """One process group that runs only when it is its turn."""

    def __init__(self, entry: Entry, block_steps: int) -> None:
        self.entry = entry
        self.blocks: list[Block] = []
        self.ready: dict[str, Any] = {}
        self.failure: str | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="gpujob-bench-")
        self.folder = Path(self._folder.name)
        self._buffer = b""
        to_child, from_child = os.pipe(), os.pipe()
        part = Assignment(
            to_child[0],
            from_child[1],
            entry.free_steps,
            block_steps,
            entry.fence_bytes,
            str(entry.saves) if entry.saves is not None else None,
        )
        self._to, self._from = to_child[1], from_child[0]
        with self._open("stdout") as output, self._open("stderr") as errors:
            self._process = subprocess.Popen(
                entry.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment(entry.environment, part, entry.checkout),
                pass_fds=(to_child[0], from_child[1]),
                start_new_session=True,
                cwd=ROOT,
            )
        os.close(to_child[0])
        os.close(from_child[1])

    def _open(self, name: str) -> IO[bytes]:
        return (self.folder / name).open("wb")

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def expect(self, event: str, seconds: float) -> dict[str, Any]:
        """The next message, which must be `event`. Raises `EndedError`."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise EndedError(f"nothing was heard for {seconds:.0f} s")
            data = os.read(self._from, 65536)
            if not data:
                raise EndedError(self._how_it_ended())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if message["event"] != event:
            raise EndedError(f"said {message['event']!r} in place of {event!r}")
        return message

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        lines = [line for line in self.errors.splitlines() if line.strip()]
        last = lines[-1][:ERROR_CHARACTERS_MAX] if lines else "no message"
        return f"exit code {self._process.returncode}: {last}"

    def go(self) -> None:
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._to, b"\n")

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def end(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Lets the script leave as by `sys.exit(0)`, so that its last report is written."""
        os.close(self._to)
        self._signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._from)

    def remove(self) -> None:
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def environment(more: Mapping[str, str], part: Assignment, checkout: Path = ROOT) -> dict[str, str]:
    """Ours, with what a checkout needs to import the packages, and the assignment."""
    sources = ROOT / "bench/turns/started", ROOT, checkout / "api/src", checkout / "worker/src"
    paths = [str(path) for path in sources]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **own, **more, VARIABLE: part.to_text()}


class Conductor:
    """Up to a handful of programs on one machine, of which one runs at a time."""

    def __init__(self, block_steps: int, ready_seconds: float = 300.0) -> None:
        self.block_steps = block_steps
        self.programs: dict[str, Program] = {}
        self._ready_seconds = ready_seconds
        self._rounds = 0

    def __enter__(self) -> "Conductor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
        for program in self.programs.values():
            program.remove()

    def end(self) -> None:
        """Ends what still runs; what was printed can be read until the context is left."""
        for program in self.programs.values():
            if program.failure is None:
                program.end()
                program.failure = ENDED

    def start(
        self, entries: Sequence[Entry], has_time: Callable[[Entry], bool] | None = None
    ) -> None:
        """Starts all at once up to the import of torch, then one after the other until ready.

        What `has_time` says no to when its turn comes is not run, and says so.
        """
        started = [Program(entry, self.block_steps) for entry in entries]
        self.programs.update({program.entry.name: program for program in started})
        for program in started:
            self._attempt(program, self._import)
        for program in started:
            if program.failure is None:
                self._make_ready(program, has_time)

    def end_all_but(self, name: str) -> None:
        """Makes room; what was printed and measured stays."""
        for program in self.running():
            if program.entry.name != name:
                program.end()
                program.failure = ENDED

    def round(self) -> None:
        """One block of each; who is first changes from round to round."""
        running = self.running()
        if not running:
            return
        first = self._rounds % len(running)
        self._rounds += 1
        order = running[first:] + running[:first]
        for program in order if self._rounds % 2 else reversed(order):
            self._attempt(program, self._block)

    def running(self) -> list[Program]:
        return [program for program in self.programs.values() if program.failure is None]

    def _attempt(self, program: Program, what: Callable[[Program], None]) -> None:
        try:
            what(program)
        except EndedError as error:
            program.end(grace_seconds=0.5)
            program.failure = str(error)

    def _import(self, program: Program) -> None:
        program.ready = program.expect("imported", self._ready_seconds)
        program.stop()

    def _make_ready(self, program: Program, has_time: Callable[[Entry], bool] | None) -> None:
        if has_time is None or has_time(program.entry):
            program.go()
            self._attempt(program, self._await_ready)
        else:
            program.end()
            program.failure = OUT_OF_TIME

    def _await_ready(self, program: Program) -> None:
        program.ready |= program.expect("ready", self._ready_seconds)
        program.stop()

    def _block(self, program: Program) -> None:
        program.go()
        told = program.expect("block", self._ready_seconds)
        program.stop()
        facts = told["seconds"], told["processor_seconds"], told["peak_bytes"], told["saved"]
        program.blocks.append(Block(self._rounds, *facts))


def pairs(first: Program, second: Program) -> list[tuple[Block, Block]]:
    """Their blocks of the same rounds."""
    others = {block.round: block for block in second.blocks}
    return [(block, others[block.round]) for block in first.blocks if block.round in others]
