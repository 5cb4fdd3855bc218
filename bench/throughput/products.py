"""What runs beside the control plane for each kind of jobs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.throughput.kueue import Kueue
from bench.throughput.load import GPUJOBS, KUEUE_JOBS, PLAIN_JOBS
from bench.throughput.progress import wait_until
from bench.throughput.stack import Stack


class Product(Protocol):
    """Ends with its control plane."""

    async def start(self) -> None:
        """Returns once it would do what jobs ask for."""
        ...

    async def prepare(self, namespace: str) -> None:
        """Before jobs come in a namespace that is there."""
        ...


@dataclass(frozen=True, slots=True)
class Nothing:
    """Plain Jobs need the control plane alone."""

    stack: Stack

    async def start(self) -> None: ...

    async def prepare(self, namespace: str) -> None: ...


@dataclass(frozen=True, slots=True)
class OperatorAndAgents:
    """GPUJob: its CRDs and policies are there from the start and stay."""

    stack: Stack

    async def start(self) -> None:
        """Returns once there are readings of all nodes."""
        stack = self.stack
        await asyncio.to_thread(stack.start_operator)
        await wait_until(stack.operator_is_ready, "the operator", stack)
        await asyncio.to_thread(stack.start_agents)
        measured = "readings of all nodes"
        await wait_until(lambda: stack.measured_nodes() >= stack.nodes, measured, stack)

    async def prepare(self, namespace: str) -> None: ...


# By kind; each finds or builds what it needs at once.
PRODUCTS: dict[str, Callable[[Stack], Product]] = {
    PLAIN_JOBS.name: Nothing,
    KUEUE_JOBS.name: Kueue.found,
    GPUJOBS.name: OperatorAndAgents,
}
