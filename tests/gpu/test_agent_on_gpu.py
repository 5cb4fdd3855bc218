"""What the agent reads through the real driver: the GPU, and whose process holds what."""

import os
import subprocess
import sys
from collections.abc import Generator

import pynvml
import pytest
import torch

from gpujob_api.gpunode import GPUProcess
from gpujob_api.quantities import GIB
from gpujob_api.settings import ENV_POD_UID
from gpujob_operator.agent.owners import owner_by_environment
from gpujob_operator.agent.session import NvmlSession
from tests.harness.waiting import wait_until

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


@pytest.fixture
def session() -> Generator[NvmlSession]:
    found = NvmlSession(pynvml, owner_by_environment())
    yield found
    found.close()


def test_a_gpu_and_the_process_on_it(session: NvmlSession, busy: int) -> None:
    def ours() -> list[GPUProcess]:
        return [one for one in session.read().gpus[0].processes if one.pod_uid == UID]

    # The driver samples utilization several times a second; a program shows in it some time later.
    wait_until(lambda: any((one.utilization_percent or 0.0) > 30 for one in ours()))
    reading = session.read()
    gpu = reading.gpus[0]
    assert (reading.unread, gpu.healthy, gpu.health_message) == ((), True, "")
    assert gpu.model == torch.cuda.get_device_name(0)
    assert gpu.memory_total_bytes >= torch.cuda.get_device_properties(0).total_memory
    assert gpu.utilization_percent > 50
    assert gpu.power_watts is not None
    assert gpu.power_watts > 50
    found = ours()
    assert [one.pid for one in found] == [busy], gpu.processes
    assert HELD_BYTES < found[0].memory_bytes < HELD_BYTES + 2 * GIB


def test_energy_counts_on(session: NvmlSession, busy: int) -> None:
    del busy

    def joules() -> float:
        return session.read().gpus[0].energy_joules or 0.0

    first = joules()
    assert first > 0
    wait_until(lambda: joules() > first)
