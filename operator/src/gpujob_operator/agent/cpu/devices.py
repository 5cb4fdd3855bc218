"""The devices of an agent that is configured to show CPU cards on a node with a kubelet.

The node must have no GPU, and as much memory as the cards declare. CPU cards on a node with a GPU
would remain an unnoticed mistake. Jobs would run on the CPU next to an idle GPU.
"""

import os
from pathlib import Path

from gpujob_operator.agent.cpu.cards import make_cards
from gpujob_operator.agent.cpu.processes import DevicesOf
from gpujob_operator.agent.cpu.source import CpuCardSource, nvml_of_cpu_cards
from gpujob_operator.agent.nvml import DevicesRefused, Nvml

NVIDIA_VENDOR = "0x10de"
# The classes of PCI devices for display or compute (0x03...).
DISPLAY_CLASS = "0x03"
SHOWN_MAX = 4


def processor_cores() -> list[int]:
    """Returns the cores of this node that a container may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity is not None else list(range(os.cpu_count() or 1))


def cpu_devices(
    node: str, count: int, memory_bytes: int, devices_of: DevicesOf, *, beside_gpus: bool
) -> Nvml:
    """Returns NVML's functions over the node's CPU cards.

    nvmlInit raises `DevicesRefused` on a node that must not have CPU cards.
    """

    def opener() -> CpuCardSource:
        check_node(count, memory_bytes, beside_gpus=beside_gpus)
        return CpuCardSource(make_cards(node, count, memory_bytes, processor_cores()), devices_of)

    return nvml_of_cpu_cards(opener)


def check_node(
    count: int,
    memory_bytes: int,
    *,
    beside_gpus: bool,
    proc: Path = Path("/proc"),
    sysfs: Path = Path("/sys"),
) -> None:
    """Raises `DevicesRefused` with the problem and what to do."""
    gpus = [] if beside_gpus else nvidia_gpus(proc, sysfs)
    if gpus:
        shown = ", ".join(gpus[:SHOWN_MAX]) + (", ..." if len(gpus) > SHOWN_MAX else "")
        raise DevicesRefused(
            f"this node has {len(gpus)} NVIDIA GPU{'s' if len(gpus) > 1 else ''} ({shown}), and "
            "CPU cards are for nodes without one: set agent.devices=nvml, or "
            "agent.cpu.besideGPUs=true if pods cannot use it (kind on a laptop)"
        )
    there = memory_total_bytes(proc)
    if count * memory_bytes > there:
        raise DevicesRefused(
            f"{count} CPU cards of {memory_bytes} bytes need {count * memory_bytes} bytes, and "
            f"this node has {there}: set agent.cpu.count or agent.cpu.memory lower"
        )


def nvidia_gpus(proc: Path, sysfs: Path) -> list[str]:
    """Returns the PCI addresses of the node's NVIDIA GPUs, with or without a driver.

    A container sees the host's buses and the driver's folder in /proc, whatever devices it has.
    """
    driver = proc / "driver" / "nvidia" / "gpus"
    found = {folder.name for folder in _folders(driver)}
    for device in _folders(sysfs / "bus" / "pci" / "devices"):
        kind, vendor = _line(device / "class"), _line(device / "vendor")
        if kind.startswith(DISPLAY_CLASS) and vendor == NVIDIA_VENDOR:
            found.add(device.name)
    return sorted(found)


def memory_total_bytes(proc: Path) -> int:
    """Returns the node's memory in bytes, or 0 if /proc/meminfo does not contain it."""
    for line in _text(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0


def _folders(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _line(path: Path) -> str:
    return _text(path).strip().lower()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
