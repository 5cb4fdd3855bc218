"""One kind of script, run four times: as it is, hooked, stopped by SIGTERM, and once more."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.matrix.kinds import MARK, Kind
from gpujob_api.codec import FieldError
from gpujob_api.report import Report
from gpujob_worker.launch.command import HOOK_FOLDER
from gpujob_worker.launch.first_process import ENV_FIRST_PROCESS
from gpujob_worker.options import ENV_OPTIONS

STEPS, STEPS_STOPPED = 24, 4000
SECONDS_MAX = 300.0
ALIKE = 0.02
COLUMNS = ("kind", "injected", "applied", "skipped", "result", "stopped", "resumed")


@dataclass(frozen=True, slots=True)
class Run:
    """How one run ended, and its last report."""

    code: int
    output: str
    errors: str
    report: Report | None

    @property
    def loss(self) -> float | None:
        """The last one that was printed."""
        lines = [line for line in self.output.splitlines() if line.startswith("loss ")]
        return float(lines[-1].split()[1]) if lines else None


def row(name: str, kind: Kind, folder: Path, *, stops: bool) -> dict[str, str]:
    """What became of it. `stops`: whether it is stopped and started again too."""
    plain = run(kind, folder / "plain", {}, STEPS)
    hooked = run(kind, folder / "hooked", environment(folder / "hooked"), STEPS)
    found = {"kind": name, "injected": _injected(kind, hooked), "result": _result(plain, hooked)}
    found["applied"], found["skipped"] = _decided(hooked)
    if not stops or not kind.trains:
        return {**found, "stopped": "-", "resumed": "-"}
    variables = environment(folder / "stopped")
    stopped = run(kind, folder / "stopped", variables, STEPS_STOPPED, stop=True)
    again = {**variables, "GPUJOB_ATTEMPT": "2"}
    resumed = run(kind, folder / "stopped", again, STEPS)
    at = resumed.report.resumed_from_step if resumed.report is not None else None
    from_step = f"at step {at}" if at is not None else "no, from the start"
    return {**found, "stopped": str(stopped.code), "resumed": from_step}


def environment(folder: Path) -> dict[str, str]:
    """As in a pod of the worker's image, whose command does not begin with `gpujob-run`."""
    return {
        "PYTHONPATH": str(HOOK_FOLDER),
        ENV_OPTIONS: "--explain --tuning-seconds 2",
        "GPUJOB_NAME": "matrix",
        "GPUJOB_GRACE_SECONDS": "20",
        "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
        "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
    }


def run(
    kind: Kind, folder: Path, variables: Mapping[str, str], steps: int, *, stop: bool = False
) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    mark, message = folder / "mark", folder / "termination"
    mark.unlink(missing_ok=True)
    for name, text in {"train.py": kind.source, "mark.py": MARK, **kind.files}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    given = {k: v for k, v in os.environ.items() if not k.startswith(("GPUJOB", "PYTHONPATH"))}
    given["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}"
    given |= {"OMP_NUM_THREADS": "1", "MARK": str(mark), "STEPS": str(steps), **variables}
    # As the first process of a container, to which a stop goes.
    first = ("sh", "-c", f'{ENV_FIRST_PROCESS}=$$ exec "$@"', "sh") if variables else ()
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(
            (*first, *kind.command),
            cwd=folder,
            env=given,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            if stop:
                _wait_for(mark, process)
                _stop(process)
            code = process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            _kill(process)
    output, errors = (folder / "out").read_text(), (folder / "err").read_text()
    return Run(code, output, errors, _report(message))


def _report(message: Path) -> Report | None:
    try:
        return Report.from_text(message.read_text())
    except (OSError, ValueError, FieldError):
        return None


def _wait_for(mark: Path, process: "subprocess.Popen[bytes]") -> None:
    ends = time.monotonic() + SECONDS_MAX
    while not mark.exists() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.02)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """As a kubelet: to the container's first process alone."""
    if process.poll() is None:
        process.terminate()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Whatever a launcher left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(10)


def _injected(kind: Kind, hooked: Run) -> str:
    report = hooked.report
    if report is None or not report.torch_version:
        return "no" if kind.trains else "no, as it should be"
    return f"yes, {report.step} steps"


def _decided(hooked: Run) -> tuple[str, str]:
    lines = hooked.report.explain if hooked.report is not None else ()
    applied = [line.partition(" applied: ")[0] for line in lines if " applied: " in line]
    refusals = [line for line in lines if line.startswith(("everything ", "processes skipped"))]
    skipped = sum(" skipped: " in line for line in lines)
    return ", ".join(applied) or "-", refusals[0][:60] if refusals else f"{skipped} items"


def _result(plain: Run, hooked: Run) -> str:
    if plain.code or hooked.code:
        return f"exit {plain.code}, {hooked.code}"
    before, after = plain.loss, hooked.loss
    if plain.output == hooked.output or (before is not None and before == after):
        return "identical"
    if before is None or after is None:
        return "other output"
    return "close" if abs(after - before) <= ALIKE * abs(before) else f"{before:.4g}, {after:.4g}"
