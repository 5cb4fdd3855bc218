"""Engines on a shared GPU get a memory flag that keeps them within their reservation. Other
commands stay as they are.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.quantities import GIB, MIB
from gpujob_worker import __main__ as program
from gpujob_worker.device.cuda_context import CONTEXT_BYTES_ASSUMED
from gpujob_worker.device.nvml import visible_memory_bytes
from gpujob_worker.launch.engine_flags import (
    SGLANG,
    VLLM,
    Engine,
    engine_of,
    hold,
    placed_at,
    with_flag,
)
from tests.harness.fake_nvml import FakeGPU, FakeNvml

pytestmark = pytest.mark.any_torch

SERVE = ["/usr/bin/vllm", "serve", "model"]
API_SERVER = ["/usr/bin/python3.12", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
LAUNCH = [
    "/usr/bin/python",
    "-u",
    "-W",
    "ignore",
    "-m",
    "sglang.launch_server",
    "--model-path",
    "m",
]


def total_of(gib: int) -> int:
    return gib * GIB


def unknown() -> int:
    raise ModuleNotFoundError("No module named 'pynvml'")


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        # (20.5 - 0.5) / 80 = 0.25, and 90 % of it.
        (SERVE, ["--gpu-memory-utilization", "0.250"]),
        (API_SERVER, ["--gpu-memory-utilization", "0.250"]),
        (LAUNCH, ["--mem-fraction-static", "0.225"]),
    ],
)
def test_an_engine_gets_its_part_of_the_gpu(command: Sequence[str], flag: Sequence[str]) -> None:
    held = hold(command, 20 * GIB + 512 * MIB, lambda: total_of(80))
    assert held.command == [*command, *flag]
    assert held.line.endswith(f"{' '.join(flag)}, 20.5 GiB of 80 GiB are reserved")


@given(
    st.sampled_from([VLLM, SGLANG]),
    st.integers(1, 2**41),
    st.integers(1, 2**41),
)
def test_a_fraction_never_exceeds_the_reservation(engine: Engine, limit: int, total: int) -> None:
    held = with_flag(SERVE, engine, limit, total)
    if len(held.command) == len(SERVE):
        assert "without" in held.line
        return
    thousandths = round(1000 * float(held.command[-1]))
    left = engine.share_percent * (limit - CONTEXT_BYTES_ASSUMED)
    assert 0 < thousandths < 1000
    # Rounded down, and by less than one of the last digit.
    assert 0 <= 1000 * left - 100 * thousandths * total < 100 * total


@pytest.mark.parametrize(
    "command",
    [
        ["/usr/bin/vllm", "bench", "serve"],
        ["/usr/bin/vllm"],
        ["/usr/bin/python", "train.py", "-m", "sglang.launch_server"],
        ["/usr/bin/python", "-c", "pass", "-m", "sglang.launch_server"],
        ["/usr/bin/python", "-m", "torch.distributed.run"],
        ["/usr/bin/python", "-m"],
        ["/bin/sh", "-c", "vllm serve model"],
    ],
)
def test_other_commands_stay_and_nothing_is_looked_up(command: Sequence[str]) -> None:
    assert engine_of(command) is None
    held = hold(command, GIB, unknown)
    assert (held.command, held.line) == (command, "")


def test_a_gpu_that_is_not_shared_changes_nothing() -> None:
    assert hold(SERVE, None, unknown).command == SERVE
    assert hold(SERVE, None, unknown).line == ""


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ([*SERVE, "--gpu-memory-utilization", "0.5"], "--gpu-memory-utilization"),
        ([*SERVE, "--gpu-memory-utilization=0.5"], "--gpu-memory-utilization=0.5"),
        ([*SERVE, "--gpu_memory_utilization", "0.5"], "--gpu_memory_utilization"),
        ([*SERVE, "--gpu-memory-util", "0.5"], "--gpu-memory-util"),
        ([*SERVE, "--kv-cache-memory-bytes", "9G"], "--kv-cache-memory-bytes"),
        ([*LAUNCH, "--mem-fraction-static=.3"], "--mem-fraction-static=.3"),
    ],
)
def test_a_flag_in_the_command_wins(command: Sequence[str], flag: str) -> None:
    held = hold(command, 20 * GIB, unknown)
    assert held.command == command
    assert held.line.endswith(f": memory as in the command, by {flag}")


def test_another_flag_that_begins_alike_does_not_count() -> None:
    command = [*SERVE, "--gpu-memory-utilization-report", "--mem-fraction-static", "0.5"]
    assert hold(command, 20 * GIB, lambda: total_of(80)).command[-2] == VLLM.flag


def test_without_nvml_the_command_stays_and_the_reason_is_printed() -> None:
    held = hold(SERVE, GIB, unknown)
    assert held.command == SERVE
    assert held.line == (
        "vLLM: without --gpu-memory-utilization, because the GPU's memory is not known: "
        "ModuleNotFoundError: No module named 'pynvml'"
    )


@pytest.mark.parametrize("limit", [1, 512 * MIB, 90 * GIB])
def test_a_reservation_that_permits_no_fraction_is_named(limit: int) -> None:
    held = hold(SERVE, limit, lambda: total_of(80))
    assert held.command == SERVE
    assert held.line.endswith("of 80 GiB are reserved")


@pytest.mark.parametrize("command", [SERVE, API_SERVER, LAUNCH])
def test_an_engine_on_a_process_node_listens_on_the_address_of_its_replica(
    command: Sequence[str],
) -> None:
    placed = placed_at(command, "127.9.0.4")
    assert placed.command == [*command, "--host", "127.9.0.4"]
    assert placed.line.endswith(": --host 127.9.0.4, the replica's address")


@pytest.mark.parametrize("flag", [["--host", "0.0.0.0"], ["--host=0.0.0.0"]])
def test_an_address_in_the_command_stays_and_the_line_names_the_other_one(flag: list[str]) -> None:
    placed = placed_at([*SERVE, *flag], "127.9.0.4")
    assert placed.command == [*SERVE, *flag]
    assert "--host 127.9.0.4" in placed.line


@pytest.mark.parametrize(
    ("command", "host"),
    [(SERVE, "10.0.0.7"), (SERVE, ""), (SERVE, "node-1"), (["/usr/bin/python", "x"], "127.9.0.4")],
)
def test_elsewhere_an_engine_keeps_its_addresses(command: Sequence[str], host: str) -> None:
    """A pod's own network has room for all addresses, and port-forward needs the local one."""
    placed = placed_at(command, host)
    assert (placed.command, placed.line) == (command, "")


class Nvml(FakeNvml):
    def nvmlShutdown(self) -> None:  # noqa: N802
        self.inits -= 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml(FakeGPU("GPU-a", total=24 * GIB), FakeGPU("GPU-b", total=80 * GIB))
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


@pytest.mark.parametrize(
    ("environ", "gib"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a"}, 24),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a, GPU-b"}, 80),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-b", "CUDA_VISIBLE_DEVICES": "GPU-a"}, 24),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 80),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 80),
        ({}, 80),
    ],
)
def test_the_memory_is_that_of_the_visible_gpus(
    nvml: Nvml, environ: dict[str, str], gib: int
) -> None:
    assert visible_memory_bytes(environ) == gib * GIB
    assert nvml.inits == 0


def test_gpus_that_nvml_does_not_list_are_an_error(nvml: Nvml) -> None:
    with pytest.raises(Exception, match="NVML error 6"):
        visible_memory_bytes({"NVIDIA_VISIBLE_DEVICES": "GPU-c"})
    nvml.gpus.clear()
    with pytest.raises(LookupError, match="NVML lists no GPU"):
        visible_memory_bytes({})
    assert nvml.inits == 0


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("Auto", ["serve", "m", "--gpu-memory-utilization", "0.250"]), ("Off", ["serve", "m"])],
)
def test_the_engine_is_started_with_the_flag(
    nvml: Nvml,
    mode: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = tmp_path / "vllm"
    engine.write_text(f"#!{sys.executable}\n")
    engine.chmod(0o755)
    started: list[list[str]] = []
    monkeypatch.setenv("GPUJOB_MEMORY_LIMIT_BYTES", str(20 * GIB + 512 * MIB))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-b")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("GPUJOB_SETTINGS", f'{{"mode": "{mode}"}}')
    monkeypatch.setenv("GPUJOB_SERVING_HOST", "127.9.0.4")

    def execve(path: str, words: list[str], environment: dict[str, str]) -> None:
        started.append(words)

    monkeypatch.setattr("os.execve", execve)
    assert program.main(["--", str(engine), "serve", "m"]) == 0
    assert started == [[str(engine), *expected, "--host", "127.9.0.4"]]
    assert (": --gpu-memory-utilization 0.250, " in capsys.readouterr().err) == (mode == "Auto")
