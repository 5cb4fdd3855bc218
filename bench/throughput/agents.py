"""The agents of all nodes in one process: the product's own publisher, with GPUs that are idle.

Run as a program by the benchmark. It is a load: what it takes itself is not counted as the
product's.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from bench.played_agents import node_session
from bench.throughput.kwok import node_names
from gpujob_api.gpunode import GPU
from gpujob_api.quantities import GIB
from gpujob_operator.agent.direct import DirectReadings
from gpujob_operator.agent.publish import Publisher, Readiness
from gpujob_operator.agent.websocket import WebSocketConnections
from gpujob_operator.client.api_errors import ApiError
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import Kube

# The default of the agent and of the chart.
INTERVAL_SECONDS = 2.0
MEMORY_BYTES = 80 * GIB


def idle_gpus(node: str, count: int) -> tuple[GPU, ...]:
    return tuple(
        GPU(
            uuid=f"GPU-{node}-{index}",
            index=index,
            model="NVIDIA H100 80GB HBM3",
            memory_total_bytes=MEMORY_BYTES,
            memory_used_bytes=0,
            power_watts=70.0,
            temperature_celsius=35.0,
        )
        for index in range(count)
    )


async def _publish_for_ever(
    kube: Kube, node: str, gpus: int, direct: DirectReadings | None
) -> None:
    publisher = Publisher(
        kube,
        node,
        interval_seconds=INTERVAL_SECONDS,
        agent_version="bench",
        clock=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        direct=direct,
    )
    readings, ready = idle_gpus(node, gpus), Readiness(True, "Reading", "")
    # Agents of a real cluster do not beat in step.
    await asyncio.sleep(random.uniform(0, INTERVAL_SECONDS))
    while True:
        try:
            await publisher.publish(readings, "575.57.08", ready)
        except ApiError as error:
            print(f"{node}: {error}", flush=True)
        await asyncio.sleep(INTERVAL_SECONDS)


async def run(kubeconfig: str, nodes: int, gpus: int, readings_url: str, tokens: Path) -> None:
    """Readings go directly if there is an address, else by the status."""
    kube = Kube(await load_configuration(kubeconfig))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(kube.close)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for number, node in enumerate(node_names(nodes)):
            direct = None
            if readings_url:
                connections = WebSocketConnections(tokens / node, node_session(number))
                direct = DirectReadings([readings_url], connections.connect, time.monotonic)
                group.create_task(direct.run())
            group.create_task(_publish_for_ever(kube, node, gpus, direct))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput.agents")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--readings-url", default="", help="of the operator; none: by the status")
    parser.add_argument("--tokens", type=Path, default=Path(), help="a file for each node")
    options = parser.parse_args(arguments)
    asyncio.run(
        run(
            options.kubeconfig,
            options.nodes,
            options.gpus,
            options.readings_url,
            options.tokens,
        )
    )


if __name__ == "__main__":
    main()
