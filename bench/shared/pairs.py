"""Pairs of workloads on one device without the operator: the law against the measurement, and MPS.

All programs stay there to the end and are held between two steps, except the one or two that are
measured: starting them takes longer than measuring them.
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.shared import figures
from bench.shared.figures import Pair, Row
from bench.shared.ground import Device
from bench.shared.meter import Meter
from bench.shared.stage import SCRIPT, Step, pace, read_steps
from bench.speed.ways import WORKLOADS
from gpujob_local.gpus.driver import CUDA_DEVICES
from gpujob_local.processes.processes import Child, start_child, stop_child
from gpujob_operator.agent.cpu.cards import CpuCard
from gpujob_operator.agent.cpu.environment import VISIBLE_DEVICES, EnvironmentDevices
from gpujob_operator.agent.cpu.source import CpuCardSource, nvml_of_cpu_cards

CARD = "CPU-pairs-0"
WARM_UP_STEPS = 12
SETTLE_SECONDS = 0.5
START_SECONDS = 150.0
MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_SECONDS = 20.0
MPS_WORKLOADS = ("gpt2", "bert", "vit")
SLICED, SERVED = "time slicing", "MPS"


class PairsError(Exception):
    """A program ended, or made no steps. The message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The workloads' size and the seconds of each measurement."""

    size: str
    seconds: float


SCALES = {
    ("cpu", True): Scale("tiny", 1.5),
    ("cpu", False): Scale("small", 6.0),
    ("cuda", True): Scale("small", 2.0),
    ("cuda", False): Scale("full", 4.0),
}


@dataclass(slots=True)
class Programs:
    """One program of each workload, held except in its turns."""

    device: Device
    folder: Path
    size: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    children: dict[str, Child] = field(default_factory=dict[str, Child])

    def start(self, names: Sequence[str]) -> None:
        for name in names:
            self._hold(name)
            command = [sys.executable, str(SCRIPT), name, "--size", self.size]
            command += ["--output-dir", str(self.folder)]
            log = self.folder / f"{name}.log"
            cores = None if self.device.is_gpu else [_core()]
            child = start_child(name, command, self._variables(name), log, cores=cores)
            self.children[name] = child
        for name in names:
            self._run([name], WARM_UP_STEPS)

    def measure(self, names: Sequence[str], seconds: float) -> tuple[float, float, list[float]]:
        """Lets them run; returns from when to when, and each one's steps a second."""
        for name in names:
            self._release(name)
        time.sleep(SETTLE_SECONDS)
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        for name in names:
            self._hold(name)
        paces = [pace(self._steps(name), start, end) for name in names]
        for name, found in zip(names, paces, strict=True):
            if not found:
                raise PairsError(f"{name} made no two steps in {seconds:.1f} s{self._tail(name)}")
        return start, end, paces

    def end(self) -> None:
        for child in self.children.values():
            stop_child(child, grace_seconds=0)

    def _variables(self, name: str) -> dict[str, str]:
        found = {**os.environ, "GPUJOB_NAME": name, "PYTHONUNBUFFERED": "1"}
        if self.device.is_gpu:
            return found | {CUDA_DEVICES: self.device.uuid} | dict(self.environment)
        return found | {CUDA_DEVICES: "", VISIBLE_DEVICES: CARD, "OMP_NUM_THREADS": "1"}

    def _run(self, names: Sequence[str], steps: int) -> None:
        end = time.monotonic() + START_SECONDS
        for name in names:
            self._release(name)
        for name in names:
            while len(self._steps(name)) < steps:
                alive = self.children[name].alive()
                if not alive or time.monotonic() > end:
                    how = f"did not start in {START_SECONDS:.0f} s" if alive else "ended"
                    raise PairsError(f"{name} {how}{self._tail(name)}")
                time.sleep(0.05)
            self._hold(name)

    def _steps(self, name: str) -> list[Step]:
        return read_steps(self.folder / f"{name}.jsonl")

    def _tail(self, name: str) -> str:
        lines = self.children[name].log_tail().strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""

    def _hold(self, name: str) -> None:
        (self.folder / f"{name}.hold").touch()

    def _release(self, name: str) -> None:
        (self.folder / f"{name}.hold").unlink(missing_ok=True)


def measure(device: Device, *, quick: bool) -> Row:
    """Each workload alone, and all pairs of two of them: ten."""
    scale = SCALES["cuda" if device.is_gpu else "cpu", quick]
    try:
        with _programs(device, scale, WORKLOADS) as (programs, meter):
            found = _pairs(programs, meter, WORKLOADS, scale.seconds)
    except PairsError as error:
        return {"claims": [], "rows": [], "failure": str(error)}
    rows = [pair.row() for pair in found]
    return {"claims": [], "rows": rows, "law": figures.law_figures(found)}


def mps(device: Device, *, quick: bool) -> Row:
    """The same pairs by time slicing and by MPS. Without its daemon the reason is the note."""
    scale = SCALES["cuda" if device.is_gpu else "cpu", quick]
    names = MPS_WORKLOADS
    if not device.is_gpu:
        return _note("MPS is a way of GPUs: CPU cards have none")
    try:
        with _programs(device, scale, names) as (programs, meter):
            sliced = _pairs(programs, meter, names, scale.seconds)
    except PairsError as error:
        return {"claims": [], "rows": [], "failure": str(error)}
    rows = [{"way": SLICED, **pair.row()} for pair in sliced]
    served, reason = _served(device, scale, names)
    rows += [{"way": SERVED, **pair.row()} for pair in served]
    return {"claims": [], "rows": rows, **({"note": reason} if reason else {})}


def _served(device: Device, scale: Scale, names: Sequence[str]) -> tuple[list[Pair], str]:
    """The pairs under MPS, or why there are none."""
    with mps_daemon() as (environment, refusal):
        if refusal:
            return [], refusal
        try:
            with _programs(device, scale, names, environment) as (programs, meter):
                return _pairs(programs, meter, names, scale.seconds), ""
        except PairsError as error:
            return [], f"MPS started, and its programs did not run: {error}"


def _note(text: str) -> Row:
    return {"claims": [], "rows": [], "note": text}


@contextmanager
def mps_daemon(control: str = MPS_CONTROL) -> Generator[tuple[dict[str, str], str]]:
    """Starts MPS in a folder of its own. Yields its clients' variables, or why it did not start."""
    path = shutil.which(control)
    if path is None:
        yield {}, f"MPS was not measured: {control} is not on PATH"
        return
    with tempfile.TemporaryDirectory(prefix="gpujob-mps-") as folder:
        pipes, logs = Path(folder, "pipe"), Path(folder, "log")
        variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        for one in (pipes, logs):
            one.mkdir()
        refusal = _asked([path, "-d"], variables)
        try:
            yield variables, f"MPS was not measured: {refusal}" if refusal else ""
        finally:
            if not refusal:
                _asked([path], variables, "quit\n")


def _asked(command: Sequence[str], variables: Mapping[str, str], text: str = "") -> str:
    """Runs the control program. Returns what it said if it failed."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=MPS_SECONDS,
            env={**os.environ, **variables},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = " ".join((done.stderr or done.stdout).split())
    return "" if done.returncode == 0 else f"{command[0]} ended with {done.returncode}: {said}"


def _pairs(programs: Programs, meter: Meter, names: Sequence[str], seconds: float) -> list[Pair]:
    """Each alone before and after the pairs, whose mean is the reference."""
    alone: dict[str, list[float]] = {name: [] for name in names}
    busy: dict[str, list[float]] = {name: [] for name in names}

    def by_itself() -> None:
        for name in names:
            start, end, (found,) = programs.measure([name], seconds)
            alone[name].append(found)
            busy[name].append(meter.span(start, end).utilization_percent)

    together: dict[tuple[str, str], list[float]] = {}
    by_itself()
    for first, second in itertools.combinations(names, 2):
        _, _, together[first, second] = programs.measure([first, second], seconds)
    by_itself()
    return [
        Pair(
            (first, second),
            (_mean(busy[first]), _mean(busy[second])),
            (paces[0] / _mean(alone[first]), paces[1] / _mean(alone[second])),
        )
        for (first, second), paces in together.items()
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@contextmanager
def _programs(
    device: Device, scale: Scale, names: Sequence[str], environment: Mapping[str, str] | None = None
) -> Generator[tuple[Programs, Meter]]:
    with tempfile.TemporaryDirectory(prefix="gpujob-pairs-") as folder:
        programs = Programs(device, Path(folder), scale.size, environment or {})
        try:
            programs.start(names)
            with Meter(_nvml(device), device.uuid or CARD) as meter:
                yield programs, meter
        finally:
            programs.end()


def _nvml(device: Device) -> Any:
    if device.is_gpu:
        import pynvml

        return pynvml
    card = CpuCard(CARD, _core(), device.memory_bytes, 0)
    return nvml_of_cpu_cards(lambda: CpuCardSource((card,), EnvironmentDevices()))


def _core() -> int:
    return max(os.sched_getaffinity(0))
