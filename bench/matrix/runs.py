"""One kind of script, run four times: as it is, hooked, stopped by SIGTERM, and once more."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.hooked import (
    SECONDS_MAX,
    Process,
    Run,
    applied,
    execute,
    hooked_environment,
    injected,
    refused,
)
from bench.matrix.kinds import MARK, Kind
from bench.refusals import REFUSED, SKIPPED

STEPS, STEPS_STOPPED = 24, 4000
ALIKE = 0.02
OPTIONS = "--explain --tuning-seconds 2"
COLUMNS = ("kind", "injected", "applied", SKIPPED, "result", "stopped", "resumed")


def row(name: str, kind: Kind, folder: Path, *, stops: bool) -> dict[str, Any]:
    """What became of it. `stops`: whether it is stopped and started again too."""
    plain = run(kind, folder / "plain", {}, STEPS)
    hooked = run(kind, folder / "hooked", hooked_environment(folder / "hooked", OPTIONS), STEPS)
    found = {
        "kind": name,
        "injected": injected(hooked, trains=kind.trains),
        "applied": applied(hooked),
        REFUSED: refused(hooked),
        "result": _result(plain, hooked),
    }
    if not stops or not kind.trains:
        return {**found, "stopped": "-", "resumed": "-"}
    variables = hooked_environment(folder / "stopped", OPTIONS)
    stopped = run(kind, folder / "stopped", variables, STEPS_STOPPED, stop=True)
    again = {**variables, "GPUJOB_ATTEMPT": "2"}
    # A crowded machine stops it late.
    made = stopped.report.step if stopped.report is not None else 0
    resumed = run(kind, folder / "stopped", again, made // STEPS * STEPS + STEPS)
    at = resumed.report.resumed_from_step if resumed.report is not None else None
    from_step = f"at step {at}" if at is not None else "no, from the start"
    return {**found, "stopped": str(stopped.code), "resumed": from_step}


def run(
    kind: Kind, folder: Path, variables: Mapping[str, str], steps: int, *, stop: bool = False
) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "mark"
    mark.unlink(missing_ok=True)
    for name, text in {"train.py": kind.source, "mark.py": MARK, **kind.files}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    given = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "MARK": str(mark),
        "STEPS": str(steps),
        **variables,
    }

    def stop_at_mark(process: Process) -> None:
        _wait_for(mark, process)
        _stop(process)

    command = (*kind.through, *kind.command) if variables else kind.command
    if stop:
        return execute(command, folder, given, meanwhile=stop_at_mark)
    return execute(command, folder, given)


def _wait_for(mark: Path, process: Process) -> None:
    ends = time.monotonic() + SECONDS_MAX
    while not mark.exists() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.02)


def _stop(process: Process) -> None:
    """As a kubelet: to the container's first process alone."""
    if process.poll() is None:
        process.terminate()


def _loss(run: Run) -> float | None:
    """The last one that was printed."""
    lines = [line for line in run.output.splitlines() if line.startswith("loss ")]
    return float(lines[-1].split()[1]) if lines else None


def _result(plain: Run, hooked: Run) -> str:
    if plain.code or hooked.code:
        return f"exit {plain.code}, {hooked.code}"
    before, after = _loss(plain), _loss(hooked)
    if plain.output == hooked.output or (before is not None and before == after):
        return "identical"
    if before is None or after is None:
        return "other output"
    return "close" if abs(after - before) <= ALIKE * abs(before) else f"{before:.4g}, {after:.4g}"
