"""What the agent reads through the real driver: the GPU, and whose process holds what."""

import os
import subprocess
import sys
import time
from collections.abc import Generator

import pynvml
import pytest
import torch

from gpujob_api.quantities import GIB
from gpujob_api.settings import ENV_POD_UID
from gpujob_operator.agent.owners import owner_by_environment
from gpujob_operator.agent.session import NvmlSession, Reading

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
UID = "0f3ab2c4-1111-2222-3333-444455556666"
HELD_BYTES = 2 * GIB
SCRIPT = f"""
import torch
held = torch.zeros({HELD_BYTES} // 4, device="cuda")
factor = torch.randn(4096, 4096, device="cuda")
print("ready", flush=True)
while True:
    for _ in range(20): factor = torch.tanh(factor @ factor)
    torch.cuda.synchronize()
"""


@pytest.fixture
def busy() -> Generator[int]:
    """The process ID of a program of a pod that computes all the time."""
    command = [sys.executable, "-c", SCRIPT]
    environment = {**os.environ, ENV_POD_UID: UID}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def readings(count: int) -> list[Reading]:
    session = NvmlSession(pynvml, owner_by_environment())
    found: list[Reading] = []
    try:
        for _ in range(count):
            found.append(session.read())
            time.sleep(1.0)
    finally:
        session.close()
    return found


def test_a_gpu_and_the_process_on_it(busy: int) -> None:
    reading = readings(3)[-1]
    print(reading)
    gpu = reading.gpus[0]
    assert (reading.unread, gpu.healthy, gpu.health_message) == ((), True, "")
    assert gpu.model == torch.cuda.get_device_name(0)
    assert gpu.memory_total_bytes >= torch.cuda.get_device_properties(0).total_memory
    assert gpu.utilization_percent > 50
    assert gpu.power_watts is not None
    assert gpu.power_watts > 50
    ours = [process for process in gpu.processes if process.pod_uid == UID]
    assert len(ours) == 1, gpu.processes
    assert ours[0].pid == busy
    assert HELD_BYTES < ours[0].memory_bytes < HELD_BYTES + 2 * GIB
    assert ours[0].utilization_percent is not None
    assert ours[0].utilization_percent > 30


def test_energy_counts_on(busy: int) -> None:
    del busy
    first, second = (reading.gpus[0].energy_joules for reading in readings(2))
    assert first is not None
    assert second is not None
    assert second > first
