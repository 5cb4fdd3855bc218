"""Runs `gpujob-run -- sh run.sh` as a container would, attempt by attempt."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpujob_worker.launch.command import hooked

OWN = (sys.executable, "-m", "gpujob_worker", "--explain", "--tuning-seconds", "1", "--")
SECONDS_MAX = 200


@dataclass(frozen=True, slots=True)
class ShellRun:
    """One attempt; `shell` is the text of run.sh. Without `forwards` the shell is the first process
    and has the start-up hook alone.
    """

    folder: Path
    shell: str
    attempt: int = 1
    forwards: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def message(self) -> Path:
        return self.folder / f"termination-{self.attempt}"

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.message.read_text())

    @property
    def output(self) -> str:
        return (self.folder / f"out-{self.attempt}").read_text()

    @property
    def errors(self) -> str:
        return (self.folder / f"err-{self.attempt}").read_text()

    @property
    def saved(self) -> list[int]:
        """Steps of which there are checkpoints."""
        found = (self.folder / "checkpoints").rglob("step-*")
        return sorted(int(path.name[5:]) for path in found if path.is_dir())

    @contextmanager
    def started(self) -> Generator[subprocess.Popen[bytes]]:
        """The first process, which is killed at the end if it is still there."""
        (self.folder / "run.sh").write_text(self.shell)
        # The shell is the first process by its own word where nothing else says it.
        alone = ("sh", "-c", 'GPUJOB_FIRST_PROCESS=$$ exec "$@"', "sh")
        first = OWN if self.forwards else alone
        with (
            (self.folder / f"out-{self.attempt}").open("wb") as out,
            (self.folder / f"err-{self.attempt}").open("wb") as err,
            subprocess.Popen(
                [*first, "sh", "run.sh"],
                cwd=self.folder,
                env=self._environment(),
                stdout=out,
                stderr=err,
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def run(self) -> int:
        """The exit code."""
        with self.started() as process:
            return process.wait(SECONDS_MAX)

    def _environment(self) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("GPUJOB")}
        return {
            **(own if self.forwards else hooked(own)),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PWD": str(self.folder),
            "GPUJOB_SETTINGS": json.dumps({"mode": "Recommend", **self.settings}),
            "GPUJOB_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(self.attempt),
            "GPUJOB_GRACE_SECONDS": "100",
            "GPUJOB_TERMINATION_FILE": str(self.message),
            "GPUJOB_OPTIONS": "" if self.forwards else "--explain --tuning-seconds 1",
            "OMP_NUM_THREADS": "1",
            **self.variables,
        }
