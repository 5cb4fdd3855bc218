"""Runs gpujob-run in fresh processes that start with torch imported: many runs are cheap."""

import contextlib
import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.harness.imitated_gpu import GpuModel

forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(
    [
        "torch",
        # Imported by the first step of any optimizer: 2 s of each process.
        "torch._dynamo",
        "torch.utils.data",
        "safetensors.torch",
        "gpujob_worker.hooks",
        "gpujob_worker.resume.training_job",
    ]
)
# A crowded machine takes many times as long; what hangs is ended by the test's own time limit.
DEADLINE_SECONDS = 220.0


@dataclass
class WorkerRun:
    """One run under way or ended; its files lie in `folder`."""

    process: ForkServerProcess
    folder: Path

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"still running after {seconds} s: {self.errors[-2000:]}")
        return self.process.exitcode

    def send(self, number: signal.Signals) -> None:
        pid = self.process.pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def wait_until(self, condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.exitcode is not None or time.monotonic() > deadline:
                return
            time.sleep(0.005)

    @property
    def output(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    @property
    def report(self) -> dict[str, Any]:
        """The termination message."""
        return json.loads((self.folder / "termination").read_text())


def _child(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    alone: bool = False,
    gpu: "GpuModel | None" = None,
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.set_start_method("fork", force=True)  # as in a process of its own
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        opened = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    if gpu is not None:
        from tests.harness.imitated_gpu import install

        install(gpu)
    from gpujob_worker.__main__ import main

    code: Any = 70
    try:
        code = _without_launcher(arguments) if alone else main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def _without_launcher(command: list[str]) -> int:
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
    return 0


def run_alone(folder: Path, command: list[str]) -> tuple[int, WorkerRun]:
    """Runs a script as Python would, without `gpujob-run`."""
    folder.mkdir(parents=True, exist_ok=True)
    process = forkserver.Process(target=_child, args=(command, str(folder), {}, True))
    process.start()
    run = WorkerRun(process, folder)
    return run.wait(), run


def start_worker(
    folder: Path,
    command: list[str],
    *,
    settings: Mapping[str, Any] | None = None,
    options: tuple[str, ...] = ("--explain",),
    environment: Mapping[str, str] | None = None,
    gpu: "GpuModel | None" = None,
) -> WorkerRun:
    """Starts `gpujob-run options -- command`; reports end up in `folder`/termination.

    With `gpu` the process has that imitated GPU as `cuda:0`, and virtual time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "GPUJOB_SETTINGS": json.dumps(dict(settings or {})),
        "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
        **(environment or {}),
    }
    arguments = [*options, "--", *command]
    process = forkserver.Process(
        target=_child, args=(arguments, str(folder), variables, False, gpu)
    )
    process.start()
    return WorkerRun(process, folder)


def run_worker(folder: Path, command: list[str], **keywords: Any) -> tuple[int, WorkerRun]:
    run = start_worker(folder, command, **keywords)
    return run.wait(), run
