"""A program run as in a pod of the worker's image, and what its last report says of it."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gpujob_api
import gpujob_worker
from gpujob_api.codec import FieldError
from gpujob_api.report import Report
from gpujob_worker.launch.command import HOOK_FOLDER
from gpujob_worker.launch.first_process import ENV_FIRST_PROCESS
from gpujob_worker.options import ENV_OPTIONS

SECONDS_MAX = 300.0
_DECISION = re.compile(r"(?P<item>.+?) (?P<verdict>applied|skipped): (?P<reason>.*)", re.DOTALL)

Process = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Run:
    """How one run ended, and its last report."""

    code: int
    output: str
    errors: str
    report: Report | None
    seconds: float


def hooked_environment(
    folder: Path, options: str, hook: Path = Path(HOOK_FOLDER)
) -> dict[str, str]:
    """As in a pod whose command does not begin with `gpujob-run`; `options` are those of it."""
    return {
        "PYTHONPATH": str(hook),
        ENV_OPTIONS: options,
        "GPUJOB_NAME": "benchmark",
        "GPUJOB_GRACE_SECONDS": "20",
        "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
        "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
    }


def packages_in_one_folder(folder: Path) -> Path:
    """The hook's folder among copies of the worker's packages, as an image that is not ours gets
    them: its interpreter has none of them."""
    for package in (gpujob_api, gpujob_worker):
        source = Path(str(package.__file__)).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / source.name, ignore=ignored)
    return folder / gpujob_worker.__name__ / Path(HOOK_FOLDER).name


def execute(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    place: Path | None = None,
    meanwhile: Callable[[Process], None] = lambda _: None,
) -> Run:
    """Runs a command in `place`; its output and its report are kept in `folder`.

    Where it is hooked, it is the first process of a container, to which a stop goes. Whatever it
    leaves behind is ended with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("GPUJOB", "PYTHON"))}
    hooked = any(name.startswith("GPUJOB") for name in variables)
    first = ("sh", "-c", f'{ENV_FIRST_PROCESS}=$$ exec "$@"', "sh") if hooked else ()
    start = time.monotonic()
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(
            (*first, *command),
            cwd=place or folder,
            env={**own, **variables},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            meanwhile(process)
            code = process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            _kill(process)
    output = (folder / "out").read_text(errors="replace")
    errors = (folder / "err").read_text(errors="replace")
    report = _report(folder / "termination")
    return Run(code, output, errors, report, time.monotonic() - start)


def injected(run: Run, *, trains: bool) -> str:
    """Whether a hooked run was reached, for a table."""
    if run.report is None or not run.report.torch_version:
        return "no" if trains else "no, as it should be"
    return f"yes, {run.report.step} steps"


def applied(run: Run) -> str:
    """What was applied, for a table."""
    return ", ".join(_decisions(run, "applied")) or "-"


def refused(run: Run) -> dict[str, str]:
    """The reason of each item that was skipped."""
    return _decisions(run, "skipped")


def _decisions(run: Run, verdict: str) -> dict[str, str]:
    lines = run.report.explain if run.report is not None else ()
    found = [match for line in lines if (match := _DECISION.match(line))]
    return {match["item"]: match["reason"] for match in found if match["verdict"] == verdict}


def _report(message: Path) -> Report | None:
    try:
        return Report.from_text(message.read_text())
    except (OSError, ValueError, FieldError):
        return None


def _kill(process: Process) -> None:
    """Whatever a launcher left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(10)
