"""A node for an agent: the imitated driver, processes of pods in a tree like /proc, and a process
that reads as the agent does."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpujob_api.codec import decode
from gpujob_api.gpunode import GPU
from tests.harness.imitated_nvml import ImitatedDriver
from tests.harness.repository import ROOT

READER = ("-m", "tests.harness.imitated_nvml.reader")
END_SECONDS = 30


class ProcessTree:
    """What /proc tells of processes: their cgroups and when they started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = 0

    def put(self, pid: int, cgroup: str) -> None:
        """A process that starts now, with the text of its /proc/PID/cgroup."""
        self._started += 1
        folder = self.folder / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(cgroup)
        fields = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{pid} (a worker) S {fields} {self._started} 0\n")

    def end(self, pid: int) -> None:
        folder = self.folder / str(pid)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


class NVMLFailureError(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class ImitatedReading:
    """By index."""

    gpus: dict[int, GPU]
    unread: list[str]
    driver_version: str


class ReaderProcess:
    """Reads through pynvml whenever it is asked to."""

    def __init__(self, driver: ImitatedDriver) -> None:
        self._driver = driver
        self._child = subprocess.Popen(
            [sys.executable, *READER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=driver.environment(),
        )

    def begin(self, driver: ImitatedDriver, tree: ProcessTree) -> None:
        """Reads another driver from now on, as the first agent of its node."""
        assert driver.script == self._driver.script
        self._driver = driver
        self._tell(f"begin {tree.folder}")

    def read(self) -> ImitatedReading:
        """What the agent would publish of the driver as it is now. Raises `NVMLFailureError`."""
        self._driver.write()
        return self.read_as_it_is()

    def read_as_it_is(self) -> ImitatedReading:
        """The same without writing the driver's script first."""
        self._tell("read")
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the reader ended with {self._child.wait(END_SECONDS)}"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NVMLFailureError(answer["error"], answer["code"])
        gpus = [decode(GPU, gpu) for gpu in answer["gpus"]]
        return ImitatedReading({gpu.index: gpu for gpu in gpus}, answer["unread"], answer["driver"])

    def restart(self) -> None:
        """Goes on as a new agent does, which knows what the one before published."""
        self._tell("restart")

    def stop(self) -> None:
        self._child.communicate(timeout=END_SECONDS)

    def _tell(self, command: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{command}\n")
        self._child.stdin.flush()
