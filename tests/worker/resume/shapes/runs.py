"""Runs one script once: in a child of a zygote, or as a process of its own under `gpujob-run`."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tests.worker.resume.shapes import stop_at_step, zygote
from tests.worker.resume.shapes.stop_at_step import (
    ENV_STEPS_FILE,
    ENV_STOP_AT,
    ENV_STOP_SIGNAL,
    ENV_STOP_WHEN,
)

SECONDS_MAX = 60.0
# Nothing is tuned: with settings that differ from attempt to attempt numbers may differ, too.
OPTIONS = ("--explain", "--tuning-seconds", "0.01", "--settings", '{"mode":"Recommend"}')
# Is read by each process of a real run; it leaves no name, since the worker saves those of modules
# that are the script's.
SITE = """
from importlib.util import module_from_spec, spec_from_file_location
from gpujob_worker.launch.import_hooks import when_imported
spec = spec_from_file_location("stop_at_step", {path!r})
module = module_from_spec(spec)
spec.loader.exec_module(module)
when_imported("torch", module.install)
del module_from_spec, spec_from_file_location, when_imported, spec, module
"""


@dataclass(frozen=True)
class Request:
    """One process of a script; without `attempt` it runs plain, without the worker."""

    script: Path
    folder: Path
    # Where its streams and reports go.
    results: Path
    name: str
    attempt: int | None = None
    checkpoints: Path | None = None
    stop_at: int = 0
    stop_when: str = "after"
    stop_signal: int = signal.SIGTERM

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GPUJOB", "PYTHON", "STOP_", "STEPS_"))
        }
        kept |= {"OMP_NUM_THREADS": "1", ENV_STEPS_FILE: str(self.results / f"{self.name}.steps")}
        if self.stop_at:
            kept |= {
                ENV_STOP_AT: str(self.stop_at),
                ENV_STOP_WHEN: self.stop_when,
                ENV_STOP_SIGNAL: str(int(self.stop_signal)),
            }
        if self.attempt is not None:
            kept |= {
                "GPUJOB_CHECKPOINT_DIR": str(self.checkpoints),
                "GPUJOB_ATTEMPT": str(self.attempt),
                "GPUJOB_GRACE_SECONDS": "30",
                "GPUJOB_TERMINATION_FILE": str(self.results / f"{self.name}.json"),
            }
        return kept


@dataclass(frozen=True)
class Run:
    """How it ended; `code` is None where it was ended after `SECONDS_MAX`."""

    code: int | None
    output: str
    errors: str
    seconds: float
    steps: int | None = None
    report: dict[str, Any] = field(default_factory=dict[str, Any])


class Runner(Protocol):
    """Starts one process at a time."""

    def run(self, request: Request) -> Run: ...


class Zygote:
    """Forks a child for each run."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", zygote.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=zygote.ROOT,
            env=environment,
        )

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(SECONDS_MAX)

    def run(self, request: Request) -> Run:
        out, error = _streams(request)
        sent = {
            "script": str(request.script),
            "folder": str(request.folder),
            "environment": request.environment,
            "options": None if request.attempt is None else OPTIONS,
            "out": str(out),
            "error": str(error),
            "seconds": SECONDS_MAX,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(sent) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote ended with {self._process.wait(SECONDS_MAX)}")
        answer = json.loads(line)
        return _run_of(request, answer["code"], answer["seconds"])


class RealProcesses:
    """Starts `python script` and `gpujob-run -- python script`."""

    def run(self, request: Request) -> Run:
        out, error = _streams(request)
        site = request.results / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SITE.format(path=stop_at_step.__file__))
        command = [sys.executable, str(request.script)]
        if request.attempt is not None:
            launcher = str(Path(sys.executable).parent / "gpujob-run")
            command = [launcher, *OPTIONS, "--", "python", str(request.script)]
        path = filter(None, [os.environ.get("PYTHONPATH")])
        begin = time.monotonic()
        with open(out, "w") as output, open(error, "w") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=request.folder,
                env={**request.environment, "PYTHONPATH": os.pathsep.join([str(site), *path])},
                start_new_session=True,
            )
            try:
                code = process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = None
        return _run_of(request, code, time.monotonic() - begin)


def _streams(request: Request) -> tuple[Path, Path]:
    request.folder.mkdir(parents=True, exist_ok=True)
    request.results.mkdir(parents=True, exist_ok=True)
    return request.results / f"{request.name}.out", request.results / f"{request.name}.err"


def _run_of(request: Request, code: int | None, seconds: float) -> Run:
    out, error = _streams(request)
    steps = request.results / f"{request.name}.steps"
    report = request.results / f"{request.name}.json"
    return Run(
        code,
        out.read_text(errors="replace"),
        error.read_text(errors="replace"),
        seconds,
        int(steps.read_text()) if steps.exists() else None,
        json.loads(report.read_text()) if report.exists() and report.stat().st_size else {},
    )
