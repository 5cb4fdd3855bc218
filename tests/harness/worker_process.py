"""Runs gpujob-run in fresh processes that start with torch imported: many runs are cheap."""

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpujob_worker.resume import rerun

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
        "gpujob_worker.process",
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
    # A method of the worker raises by intention; else an error in it fails the test.
    broken: bool = False

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"still running after {seconds} s: {self.errors[-2000:]}")
        assert self.broken or "everything skipped: the worker " not in self.errors, self.errors
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
    broken: str | None = None,
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
    if broken is not None:
        _break(broken)
    code = 70
    try:
        code = interpret(arguments) if alone else _launch(arguments)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _break(place: str) -> None:
    """Makes one method, `module:Class.method`, raise whenever it is called."""

    def fails(*values: Any, **named: Any) -> Any:
        raise RuntimeError("broken on purpose")

    module, _, names = place.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, method = names.split(".")
    for name in classes:
        owner = getattr(owner, name)
    assert callable(getattr(owner, method)), place
    setattr(owner, method, fails)


def _launch(arguments: list[str]) -> int:
    """As `gpujob-run`, but that what it would become is run by this interpreter."""
    from gpujob_worker import activation
    from gpujob_worker.__main__ import main

    become: list[str] = []

    def execute(program: str, words: list[str], environment: dict[str, str]) -> None:
        os.environ.update(environment)
        become[:] = words

    os.execve = execute  # type: ignore[assignment]
    returned: int | None = main(arguments)
    if not become:
        return returned or 0
    sys.argv = become[1:]
    activation.start()
    # With the arguments that the worker may have changed.
    code = interpret(sys.argv)
    activation.this_process().end()
    return code


def interpret(words: list[str]) -> int:
    """Runs a script as the interpreter does, and says of its end what the interpreter says."""
    sys.argv = words
    sys.path[0:0] = [str(Path(words[0]).resolve().parent)]
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=__builtins__, __file__=words[0], __spec__=None)
    sys.modules["__main__"] = module
    source = Path(words[0]).read_bytes()
    try:
        code = rerun.code_of(source, words[0]) or compile(source, words[0], "exec")
        exec(code, module.__dict__)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_value = error
        entry = error.__traceback__
        error = error.with_traceback(entry.tb_next if entry is not None else None)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def run_alone(
    folder: Path, command: list[str], environment: Mapping[str, str] | None = None
) -> tuple[int, WorkerRun]:
    """Runs a script as Python would, without `gpujob-run`."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = dict(environment or {})
    process = forkserver.Process(target=_child, args=(command, str(folder), variables, True))
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
    broken: str | None = None,
) -> WorkerRun:
    """Starts `gpujob-run options -- command`; reports end up in `folder`/termination.

    With `gpu` the process has that imitated GPU as `cuda:0`, and virtual time. `broken` is a method
    of the worker, `module:Class.method`, that raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "GPUJOB_SETTINGS": json.dumps(dict(settings or {})),
        "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
        **(environment or {}),
    }
    arguments = [*options, "--", *command]
    process = forkserver.Process(
        target=_child, args=(arguments, str(folder), variables, False, gpu, broken)
    )
    process.start()
    return WorkerRun(process, folder, broken is not None)


def run_worker(folder: Path, command: list[str], **keywords: Any) -> tuple[int, WorkerRun]:
    run = start_worker(folder, command, **keywords)
    return run.wait(), run
