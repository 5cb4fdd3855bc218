"""A container's main process: its end is seen by asyncio, and by nobody before."""

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from gpujob_local.kubelet.container_process import ContainerProcess, ProcessSpecification


def _process(folder: Path, *command: str) -> ContainerProcess:
    environment = {"PATH": "/usr/bin:/bin"}
    log = folder / "log"
    return ContainerProcess(
        ProcessSpecification(f"{folder}", command, environment, folder, log, None)
    )


def _steal(process: subprocess.Popen[bytes]) -> None:
    raise AssertionError(f"process {process.pid} was polled beside asyncio")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_leaves_the_exit_status_to_asyncio(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = _process(tmp_path, "sleep", "100")
    await process.start()
    monkeypatch.setattr(subprocess.Popen, "poll", _steal)
    process.terminate() if number is signal.SIGTERM else process.kill()
    assert await process.wait() == -number


async def test_a_signal_after_the_end_reaches_nobody(tmp_path: Path) -> None:
    process = _process(tmp_path, "sh", "-c", "exit 3")
    await process.start()
    assert await asyncio.wait_for(process.wait(), 30) == 3
    process.terminate()
    process.kill()
