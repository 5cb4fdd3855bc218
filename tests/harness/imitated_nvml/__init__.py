"""An imitated NVIDIA driver: a shared library with NVML's binary interface, answering from a file.

pynvml loads the library as it loads NVIDIA's, by the name `libnvidia-ml.so.1`, and calls it through
ctypes. So a test runs the agent's real path down to the library's symbols and structures.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpujob_api.quantities import GIB

LIBRARY = "libnvidia-ml.so.1"
SCRIPT_VARIABLE = "GPUJOB_IMITATED_NVML"
# Without the variable, this file beside the library.
SCRIPT = "driver"
COMPILERS = ("cc", "gcc", "clang")
BUILD_SECONDS = 120
_SOURCES = Path(__file__).parent

UNKNOWN = 999
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18


def build_library(folder: Path, *, old: bool = False) -> Path:
    """Compiles the library into the folder. `old`: without the symbols that came with driver R510.

    Skips the test where there is no C compiler.
    """
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip(f"no C compiler ({', '.join(COMPILERS)}): {LIBRARY} cannot be imitated")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    options = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1"]
    linking = ["-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}", "-o", str(library)]
    sources = [str(path) for path in sorted(_SOURCES.glob("*.c"))]
    options.append(f'-DDEFAULT_SCRIPT="{folder / SCRIPT}"')
    command = [compiler, *options, *(["-DOLD_DRIVER"] if old else []), *linking, *sources]
    command.append("-lpthread")
    built = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert built.returncode == 0, f"{' '.join(command)}\n{built.stderr}"
    return library


@dataclass(slots=True)
class ImitatedProcess:
    """`memory_bytes` None: the driver cannot tell."""

    pid: int
    memory_bytes: int | None
    graphics: bool = False

    def lines(self) -> list[str]:
        kind = "graphics" if self.graphics else "compute"
        memory = "na" if self.memory_bytes is None else self.memory_bytes
        return [f"process {kind} {self.pid} {memory}"]


@dataclass(slots=True)
class ImitatedGPU:
    """An H100. A figure that is None is one that the GPU does not support."""

    uuid: str = "GPU-0"
    name: str = "NVIDIA H100 80GB HBM3"
    memory_total_bytes: int = 80 * GIB
    memory_reserved_bytes: int = GIB // 2
    memory_used_bytes: int = 0
    utilization_percent: int | None = 0
    power_milliwatts: int | None = 70_000
    energy_millijoules: int | None = 1_000_000
    temperature_celsius: int | None = 31
    ecc_errors: int | None = 0
    # Correctable, uncorrectable, pending, failed.
    remapped_rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    throttle_reasons: int | None = 0
    # Now and after the next reset; None: the model has no MIG mode.
    mig_mode: tuple[int, int] | None = (0, 0)
    mig_instances: int = 0
    numa_node: int | None = 0
    # 0: any process may use it.
    compute_mode: int | None = 0
    nvlinks: tuple[int, ...] = ()
    processes: list[ImitatedProcess] = field(default_factory=list[ImitatedProcess])
    # Process, time in microseconds, utilization of its kernels in percent.
    samples: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    # All since the driver was loaded, oldest first.
    xids: list[int] = field(default_factory=list[int])
    # What a function answers, by its name in the library, or "*" for all: an NVML error.
    answers: dict[str, int] = field(default_factory=dict[str, int])
    hangs: set[str] = field(default_factory=set[str])

    def lines(self) -> list[str]:
        lines = [f"gpu {self.uuid}", f"name {self.name}"]
        total, reserved = self.memory_total_bytes, self.memory_reserved_bytes
        lines.append(f"memory {total} {reserved} {self.memory_used_bytes}")
        figures: dict[str, object] = {
            "power": self.power_milliwatts,
            "energy": self.energy_millijoules,
            "temperature": self.temperature_celsius,
            "ecc": self.ecc_errors,
            "throttle": self.throttle_reasons,
            "numa": self.numa_node,
            "compute": self.compute_mode,
        }
        if self.utilization_percent is not None:
            figures["utilization"] = f"{self.utilization_percent} 0"
        if self.remapped_rows is not None:
            figures["remapped"] = " ".join(map(str, self.remapped_rows))
        if self.mig_mode is not None:
            figures["mig"] = f"{self.mig_mode[0]} {self.mig_mode[1]} {self.mig_instances}"
        lines += [f"{key} {value}" for key, value in figures.items() if value is not None]
        lines += [f"nvlink {index}" for index in self.nvlinks]
        lines += [line for process in self.processes for line in process.lines()]
        lines += [f"sample {pid} {time} {busy}" for pid, time, busy in self.samples]
        lines += [f"xid {xid}" for xid in self.xids]
        return lines + _answer_lines(self.answers, self.hangs)


def _answer_lines(answers: dict[str, int], hangs: set[str]) -> list[str]:
    told = [f"answer {name} {code}" for name, code in answers.items()]
    return told + [f"hang {name}" for name in sorted(hangs)]


@dataclass(slots=True)
class ImitatedDriver:
    """What the library says. Change it, then `write`: the library reads it at every call."""

    folder: Path
    library: Path
    gpus: list[ImitatedGPU] = field(default_factory=list[ImitatedGPU])
    version: str = "580.82.07"
    # As NVML writes it: 13000 is CUDA 13.0.
    cuda: int = 13_000
    # How often it was loaded: sessions with an earlier one are dead.
    loaded: int = 1
    # How many calls for a list find more processes than there was room for.
    crowded: int = 0
    answers: dict[str, int] = field(default_factory=dict[str, int])
    hangs: set[str] = field(default_factory=set[str])

    @property
    def script(self) -> Path:
        return self.folder / SCRIPT

    def write(self) -> None:
        lines = [f"version {self.version}", f"loaded {self.loaded}", f"crowded {self.crowded}"]
        lines.append(f"cuda {self.cuda}")
        lines += _answer_lines(self.answers, self.hangs)
        lines += [line for gpu in self.gpus for line in gpu.lines()]
        new = self.folder / "driver.new"
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.script)

    def unload(self) -> None:
        """No driver is loaded, until it is written again."""
        self.script.unlink()

    def environment(self) -> dict[str, str]:
        """For a process that is to find this driver."""
        found = {SCRIPT_VARIABLE: str(self.script), "LD_LIBRARY_PATH": str(self.library.parent)}
        return {**os.environ, **found}
