"""The hardware of the simulated cluster: what is true, whatever the API says."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpujob_api.codec import format_time

if TYPE_CHECKING:
    from tests.simulation.agents import Lie
    from tests.simulation.worker import Worker
    from tests.simulation.workloads import NodePlan

# How an agent's readings of a GPU are wrong.
MISSING_GPU = "missing"
ABSURD_GPU = "absurd"


@dataclass(slots=True)
class PhysicalGPU:
    uuid: str
    total_bytes: int
    driver_bytes: int
    unmanaged_bytes: int = 0
    healthy: bool = True
    # Errors of programs that the driver told of: when, of which pod, the XID.
    program_errors: list[tuple[datetime, str, int]] = field(
        default_factory=list[tuple[datetime, str, int]]
    )
    # "", MISSING_GPU or ABSURD_GPU: how the agent's readings of it are wrong.
    misread: str = ""


@dataclass(slots=True)
class Machine:
    """A node's hardware and its kubelet. `powered` and `connected` are not known to the API."""

    name: str
    plan: NodePlan
    gpus: dict[str, PhysicalGPU]
    powered: bool = True
    connected: bool = True
    agent_runs: bool = True
    # Its Node has the label by which it is managed, and so it has an agent.
    labelled: bool = True
    # What announces its end on its Node, if that was announced.
    leaves: dict[str, Any] | None = None
    # What its agent says instead of what it reads.
    lie: Lie | None = None
    # Whether it ever called its GPUs larger than they are: what was placed there may not fit.
    has_exaggerated: bool = False
    # Whether it ever said of pods that they use memory which they do not.
    has_blamed_pods: bool = False
    # How far the node's clock is ahead, which its kubelet and its agent go by.
    clock_error_seconds: float = 0.0
    workers: dict[str, Worker] = field(default_factory=dict["str", "Worker"])
    gone: bool = False
    # Pods whose processes ended while the node was cut off: their kubelet knows how.
    unsaid: set[str] = field(default_factory=set[str])
    # When each image is there that was ever asked for.
    images: dict[str, float] = field(default_factory=dict[str, float])
    # When its agent told, and wrote, which picture.
    published: tuple[float, object] = (float("-inf"), None)
    shown: tuple[float, object] = (float("-inf"), None)

    def time(self, moment: datetime) -> str:
        """A moment as the node's clock shows it."""
        return format_time(moment + timedelta(seconds=self.clock_error_seconds))

    def image_at(self, name: str, now: float, pull_seconds: float) -> float:
        """When the image is there, whose pull begins now where nobody asked for it before."""
        return self.images.setdefault(name, now + pull_seconds)

    def used_bytes(self, uuid: str) -> int:
        ours = sum(w.memory_on(uuid) for w in self.workers.values())
        return self.gpus[uuid].unmanaged_bytes + ours

    def free_bytes(self, uuid: str) -> int:
        gpu = self.gpus[uuid]
        return gpu.total_bytes - gpu.driver_bytes - self.used_bytes(uuid)
