"""Inside a measured process: runs blocks of steps when told to, and says how long they took.

The messages are lines of JSON to the conductor: `imported` once torch is there, `ready` after the
free steps in which a program warms up and chooses, `block` after every block. Each waits for one
line back. When the pipe closes, the program is ended as by `sys.exit(0)`.
"""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from bench.turns.saves import Saves

VARIABLE = "BENCH_TURNS"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the conductor wants; travels in the variable as JSON."""

    read_descriptor: int
    write_descriptor: int
    # None: the program itself calls `begin` when it is ready.
    free_steps: int | None
    block_steps: int
    # Allocations beyond it fail, as they would on a GPU of that size. Host memory only.
    fence_bytes: int | None = None
    # The directory of the worker's checkpoints, if it is to write one in each block.
    saves: str | None = None

    def to_text(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


class Participant:
    """Counts optimizer steps and talks to the conductor."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        saves, half = assignment.saves, assignment.block_steps // 2
        self._saves = Saves(saves, half) if saves is not None else None
        self._answers = os.fdopen(assignment.read_descriptor, "rb", buffering=0)
        self._steps = 0
        self._block_end: int | None = None
        self._started = 0.0
        self._processor_started = 0.0
        self.probes = 0

    @property
    def is_unknown_to_program(self) -> bool:
        """Whether the program does not call `begin` itself."""
        return self._assignment.free_steps is not None

    def torch_imported(self, torch: Any) -> None:
        self._torch = torch
        self._register(torch)
        self._tell("imported", memory_bytes=_host_memory_bytes())
        if self._assignment.fence_bytes is not None and not torch.cuda.is_available():
            _fence(self._assignment.fence_bytes)
        self._started = time.perf_counter()

    def begin(self, **facts: Any) -> None:
        """The free part is over; every step from here on belongs to a block."""
        self._synchronize()
        seconds = time.perf_counter() - self._started
        if self._torch.cuda.is_initialized():
            self._torch.cuda.reset_peak_memory_stats()
        else:
            _reset_host_peak()
        facts = {"probes": self.probes, "out_of_memory": self._out_of_memory()} | facts
        self._tell("ready", seconds=seconds, steps=self._steps, **facts)
        self._start_block()

    def after_step(self, *_: Any) -> None:
        self._steps += 1
        if self._block_end is None:
            if self._steps == self._assignment.free_steps:
                self.begin()
        else:
            if self._saves is not None:
                self._saves.after_step()
            if self._steps >= self._block_end:
                self._end_block()

    def _start_block(self) -> None:
        self._block_end = self._steps + self._assignment.block_steps
        self._started, self._processor_started = time.perf_counter(), time.process_time()
        if self._saves is not None:
            self._saves.block_starts()

    def _end_block(self) -> None:
        self._synchronize()
        seconds = time.perf_counter() - self._started
        processor = time.process_time() - self._processor_started
        self._tell(
            "block",
            seconds=seconds,
            processor_seconds=processor,
            peak_bytes=self._peak_bytes(),
            saved=self._saves.took if self._saves is not None else {},
        )
        self._start_block()

    def _register(self, torch: Any) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self.after_step)
        plain: Callable[..., Any] = torch.autograd.grad

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.probes += 1
            return plain(*args, **kwargs)

        # A probe of the worker is one such call; no workload of the benchmarks makes any.
        torch.autograd.grad = counted

    def _synchronize(self) -> None:
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _out_of_memory(self) -> int | None:
        """As the GPU's allocator counts them; the host's does not."""
        if not self._torch.cuda.is_initialized():
            return None
        return int(self._torch.cuda.memory_stats().get("num_ooms", 0))

    def _peak_bytes(self) -> int:
        if self._torch.cuda.is_initialized():
            return int(self._torch.cuda.max_memory_reserved()) + gpu_context_bytes(self._torch.cuda)
        return _host_peak_bytes()

    def _tell(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, **facts}) + "\n"
        os.write(self._assignment.write_descriptor, line.encode())
        if not self._answers.readline():
            raise SystemExit(0)


def gpu_context_bytes(cuda: Any) -> int:
    """What the GPU counts of this process beside torch's memory; 0 where it does not tell."""
    try:
        from gpujob_worker.device.cuda_context import gpu_context

        uuid = str(cuda.get_device_properties(cuda.current_device()).uuid)
        context = gpu_context(uuid)
        beside = context.beside_bytes(int(cuda.memory_reserved())) if context is not None else 0
    except Exception:
        return 0
    return beside or 0


_participant: Participant | None = None


def participant() -> Participant:
    """This process's part. Raises `RuntimeError` outside of a benchmark."""
    if _participant is None:
        raise RuntimeError(f"{VARIABLE} was not set when this process started")
    return _participant


def take_part() -> None:
    """Reads the variable, and waits for torch.

    Until then the variable stays: a launcher becomes the program that it starts.
    """
    global _participant
    _end_with_parent()
    _participant = present = Participant(Assignment(**json.loads(os.environ[VARIABLE])))

    def imported(torch: Any) -> None:
        # Processes that are started from now on take no part.
        os.environ.pop(VARIABLE, None)
        present.torch_imported(torch)

    sys.meta_path.insert(0, _Finder(imported))
    if present.is_unknown_to_program:
        # Else it would be one of the script's own modules, and its pipes would be the script's.
        for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
            del sys.modules[name]


def _end_with_parent() -> None:
    """A stopped process would outlive a conductor that was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the real loader of torch call back. The product has its own; this stands without it.

    Libraries ask whether torch could be imported before they import it: it stays until then.
    """

    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        self._asks = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch" or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            plain: Callable[[ModuleType], None] = spec.loader.exec_module

            def execute(module: ModuleType) -> None:
                plain(module)
                sys.meta_path.remove(self)
                self._callback(module)

            spec.loader.exec_module = execute  # pyright: ignore[reportAttributeAccessIssue]
        return spec


Field = Literal["RssAnon", "RssShmem", "RssFile", "VmHWM", "VmData"]


def _status_bytes(*names: Field) -> int:
    total = 0
    with open("/proc/self/status", encoding="ascii") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in names:
                total += int(value.split()[0]) * 1024
    return total


def _host_memory_bytes() -> int:
    return _status_bytes("RssAnon", "RssShmem")


def _host_peak_bytes() -> int:
    """Pages of files count as little as on a GPU."""
    return max(_status_bytes("VmHWM") - _status_bytes("RssFile"), _host_memory_bytes())


def _reset_host_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pass  # then the peak is that of the whole run


def _fence(limit_bytes: int) -> None:
    """Allocations fail once about `limit_bytes` are resident; the kernel counts reserved pages."""
    unused = _status_bytes("VmData") - _status_bytes("RssAnon")
    limit = limit_bytes + unused
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
