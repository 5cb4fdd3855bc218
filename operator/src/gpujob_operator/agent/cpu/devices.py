"""The devices of an agent that is configured to show CPU cards on a node with a kubelet."""

import os

from gpujob_operator.agent.cpu.cards import make_cards
from gpujob_operator.agent.cpu.node import check_node
from gpujob_operator.agent.cpu.processes import DevicesOf
from gpujob_operator.agent.cpu.source import CpuCardSource, nvml_of_cpu_cards
from gpujob_operator.agent.nvml import Nvml


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
