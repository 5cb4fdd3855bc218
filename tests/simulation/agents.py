"""The agents of the simulated nodes: what they read of their GPUs, and what one that lies says.

An agent's times are those of its node's clock, which may be wrong and may jump.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from gpujob_api.gpunode import XIDS_MAX
from gpujob_api.meta import API_VERSION
from gpujob_api.quantities import GIB
from gpujob_operator.observe.cache import Kind
from tests.harness.builders import MODEL
from tests.simulation.agent_links import AgentLink
from tests.simulation.lies import BEYOND_ALL_BYTES
from tests.simulation.machines import ABSURD_GPU, MISSING_GPU, Machine, PhysicalGPU

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.api_server import ApiServer, Manifest
    from tests.simulation.clock import Clock
    from tests.simulation.operator_shell import OperatorShell

AGENT_SECONDS = 8.0
SAMPLE_SECONDS = 2.0
# A picture that did not change is told this often, and written where the operator has it directly.
UNCHANGED_SECONDS = 20.0
SHOWN_SECONDS = 120.0


class Lie(Enum):
    """What an agent that somebody took over says of its own node: it may write no other GPUNode."""

    # Nothing runs there.
    IDLE = "idle"
    # All memory is used by processes of no pod.
    FULL = "full"
    SICK = "sick"
    # Its GPUs are larger than they are, and its own pods use 40 GiB of each.
    LARGE = "large"
    # The GPUs of another node are its own.
    GPUS_OF_OTHERS = "gpus-of-others"
    # Large GPUs that nobody built.
    GPUS_OF_NOBODY = "gpus-of-nobody"
    # The pods of other nodes use its GPUs, and all of their memory.
    PODS_OF_OTHERS = "pods-of-others"
    # The pods of other nodes fail on its GPUs, as the driver says.
    ERRORS_OF_OTHERS = "errors-of-others"


class Agents:
    def __init__(
        self,
        clock: Clock,
        api: ApiServer,
        machines: dict[str, Machine],
        shells: Sequence[OperatorShell],
        breaks: Callable[[], bool],
    ) -> None:
        """`breaks` says before each message whether the connection breaks."""
        self._shells = shells
        self.breaks = breaks
        # Told the node and the GPUs of each reading that is sent directly.
        self.sent: Callable[[str, list[Manifest]], None] = lambda node, gpus: None
        self._clock = clock
        self._api = api
        self._machines = machines

    def join(self, machine: Machine) -> None:
        """The node's agent starts: its GPUNode is there at once."""
        self.register(machine)
        link = AgentLink(self._clock, self._shells, machine, lambda: self.breaks())
        self._publish(machine, link)
        self._clock.every(AGENT_SECONDS, lambda: self._work(machine, link))

    def register(self, machine: Machine) -> None:
        """A GPUNode that says nothing yet."""
        metadata = {"name": machine.name}
        gpu_node = {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": metadata}
        self._api.create(Kind.GPU_NODE, gpu_node, "agent")
        machine.shown = (float("-inf"), None)

    def _work(self, machine: Machine, link: AgentLink) -> bool:
        if machine.agent_runs and machine.connected and not machine.gone:
            self._publish(machine, link)
        return not machine.gone

    def _publish(self, machine: Machine, link: AgentLink) -> None:
        gpus = self._said(machine)
        at, before = machine.published
        if gpus == before and self._clock.now - at < UNCHANGED_SECONDS:
            return
        machine.published = (self._clock.now, gpus)
        status = {
            "observedAt": machine.time(self._clock.moment),
            "sampleIntervalSeconds": SAMPLE_SECONDS,
            "gpus": gpus,
        }
        self.sent(machine.name, gpus)
        link.deliver(status, lambda taken: self._show(machine, status, taken=taken))

    def _show(self, machine: Machine, status: Manifest, *, taken: bool) -> None:
        """Writes what the operator has not got directly, and now and then what it has."""
        if machine.gone or not (machine.agent_runs and machine.connected):
            return
        at, before = machine.shown
        state = [(gpu["uuid"], gpu["healthy"]) for gpu in status["gpus"]]
        if not taken or state != before or self._clock.now - at >= SHOWN_SECONDS:
            machine.shown = (self._clock.now, state)
            self._api.patch(Kind.GPU_NODE, "", machine.name, {"status": status}, "agent")

    def _said(self, machine: Machine) -> list[Manifest]:
        if machine.lie in (Lie.GPUS_OF_OTHERS, Lie.GPUS_OF_NOBODY):
            return self._borrowed(machine) if machine.lie is Lie.GPUS_OF_OTHERS else _invented()
        said = [
            self._reading(machine, gpu, index)
            for index, gpu in enumerate(machine.gpus.values())
            if gpu.misread != MISSING_GPU
        ]
        for gpu in said if machine.lie is not None else ():
            self._distort(machine, gpu)
        return said

    def _borrowed(self, machine: Machine) -> list[Manifest]:
        """As if nothing ran there."""
        others = [one for one in self._machines.values() if one is not machine and not one.gone]
        gpus = [(one, gpu) for one in others for gpu in one.gpus.values()]
        said = [self._reading(one, gpu, index) for index, (one, gpu) in enumerate(gpus)]
        return [{**gpu, "processes": [], "memoryUsedBytes": 0} for gpu in said]

    def _distort(self, machine: Machine, gpu: Manifest) -> None:
        if machine.lie is Lie.IDLE:
            gpu.update(processes=[], memoryUsedBytes=0, utilizationPercent=0.0)
        elif machine.lie is Lie.FULL:
            taken = gpu["memoryTotalBytes"]
            gpu.update(processes=[{"pid": 5, "memoryBytes": taken}], memoryUsedBytes=taken)
        elif machine.lie is Lie.SICK:
            gpu.update(healthy=False, healthMessage="XID 79")
        elif machine.lie is Lie.LARGE:
            used = [{**one, "memoryBytes": BEYOND_ALL_BYTES} for one in gpu["processes"]]
            gpu.update(memoryTotalBytes=80 * GIB, processes=used[:1])
            gpu["memoryUsedBytes"] = BEYOND_ALL_BYTES if used else 0
        elif machine.lie is Lie.PODS_OF_OTHERS:
            gpu["processes"] += [
                {"pid": 2000 + number, "memoryBytes": gpu["memoryTotalBytes"], "podUid": uid}
                for number, uid in enumerate(self._pods_elsewhere(machine))
            ]
        elif machine.lie is Lie.ERRORS_OF_OTHERS:
            at = machine.time(self._clock.moment)
            gpu["xids"] = [
                {"xid": 31, "at": at, "podUid": uid} for uid in self._pods_elsewhere(machine)
            ][:XIDS_MAX]

    def _pods_elsewhere(self, machine: Machine) -> list[str]:
        return [
            pod["metadata"]["uid"]
            for pod in self._api.list(Kind.POD)
            if pod["spec"].get("nodeName") != machine.name
        ][:8]

    def _reading(self, machine: Machine, gpu: PhysicalGPU, index: int) -> dict[str, Any]:
        """As the agent writes it (`GPU` in JSON)."""
        bound = [worker for worker in machine.workers.values() if gpu.uuid in worker.gpus]
        processes: list[dict[str, Any]] = [
            {
                "pid": 1000 + number,
                "memoryBytes": worker.memory_on(gpu.uuid),
                "podUid": worker.pod_uid,
                "utilizationPercent": worker.utilization,
            }
            for number, worker in enumerate(bound)
        ]
        if gpu.unmanaged_bytes:
            processes.append({"pid": 99, "memoryBytes": gpu.unmanaged_bytes})
        used = min(sum(p["memoryBytes"] for p in processes), gpu.total_bytes)
        return {
            "uuid": gpu.uuid,
            "index": index,
            "model": MODEL,
            "memoryTotalBytes": gpu.total_bytes,
            "memoryUsedBytes": 900 * GIB if gpu.misread == ABSURD_GPU else used,
            "memoryReservedBytes": gpu.driver_bytes,
            "utilizationPercent": min(100.0, sum(worker.utilization for worker in bound)),
            "healthy": gpu.healthy,
            "healthMessage": "" if gpu.healthy else "XID 79",
            "processes": processes,
            "xids": self._program_errors(machine, gpu),
        }

    def _program_errors(self, machine: Machine, gpu: PhysicalGPU) -> list[dict[str, Any]]:
        """As the agent tells them: the newest, for an hour."""
        since = self._clock.moment - timedelta(hours=1)
        told = [one for one in gpu.program_errors if one[0] >= since]
        return [
            {"xid": xid, "at": machine.time(at), "podUid": pod_uid}
            for at, pod_uid, xid in told[-XIDS_MAX:]
        ]


def _invented() -> list[Manifest]:
    return [
        {
            "uuid": f"GPU-invented-{index}",
            "index": index,
            "model": MODEL,
            "memoryTotalBytes": 80 * GIB,
            "memoryUsedBytes": 0,
            "memoryReservedBytes": 0,
            "utilizationPercent": 0.0,
            "healthy": True,
            "healthMessage": "",
            "processes": [],
        }
        for index in range(4)
    ]
