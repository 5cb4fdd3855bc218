"""`gpujob-agent`: measures the GPUs of one node and publishes them as its GPUNode."""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from gpujob_api.codec import FieldError
from gpujob_api.gpunode import GPUS_MAX
from gpujob_api.quantities import MIB, Memory
from gpujob_api.version import ShowVersion, installed_version
from gpujob_operator.agent.agent import HANG_SECONDS, Agent, AgentMustEndError, nothing
from gpujob_operator.agent.cpu.devices import cpu_devices
from gpujob_operator.agent.cpu.pods import PodDevices
from gpujob_operator.agent.direct import DirectReadings
from gpujob_operator.agent.liveness import Liveness
from gpujob_operator.agent.nvml import Nvml, load_nvml
from gpujob_operator.agent.owners import (
    OwnerOf,
    owner_by_cgroup,
    owner_by_environment,
    remembered,
    start_ticks,
)
from gpujob_operator.agent.publish import Publisher
from gpujob_operator.agent.websocket import WebSocketConnections
from gpujob_operator.client.connection import BadConnection, load_configuration
from gpujob_operator.client.kube import Kube
from gpujob_operator.options import listen_address
from gpujob_operator.port.listener import listening
from gpujob_operator.telemetry.logs import Log, configure_logs

log = Log(__name__)

# Where the chart mounts the token.
TOKEN_FILE = Path("/var/run/secrets/gpujob.dev/token")
EXIT_USAGE = 2
EXIT_RESTART = 3
CPU_MEMORY_BYTES_MIN = 64 * MIB
OWNERS = {"cgroup": owner_by_cgroup, "environment": owner_by_environment}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpujob-agent", description=__doc__)
    add = parser.add_argument
    add("--version", action=ShowVersion)
    add("--kubeconfig", help="without it: the pod's service account")
    add("--node", default=os.environ.get("NODE_NAME"), help="default: $NODE_NAME")
    add("--devices", choices=("nvml", "cpu"), default="nvml", help="cpu: stand-ins, see --cpu-...")
    add(
        "--nvml-module",
        default="pynvml",
        help="dotted name of a module with the functions of pynvml",
    )
    add("--cpu-count", type=int, default=1, help="CPU cards of this node")
    add("--cpu-memory", type=_memory, default="2Gi", help="memory of each, 64Mi at least")
    add("--cpu-beside-gpus", action="store_true", help="CPU cards on a node that has a GPU, too")
    add("--process-owner", choices=sorted(OWNERS), default="cgroup")
    add(
        "--readings-url",
        default="",
        metavar="URL[,URL]",
        help="where operators take readings; without it they go by the status of the GPUNode",
    )
    add("--token-file", type=Path, default=TOKEN_FILE, help="for --readings-url")
    add("--interval-seconds", type=float, default=2.0)
    add(
        "--hang-seconds",
        type=float,
        default=HANG_SECONDS,
        help="the agent ends if the driver does not answer for so long",
    )
    add(
        "--health-listen", type=listen_address, metavar="HOST:PORT", help="where /healthz is served"
    )
    add("--log-format", choices=("json", "text"), default="json")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    arguments = parser.parse_args()
    if not arguments.node:
        parser.error("--node is required where NODE_NAME is not set")
    if not 1 <= arguments.cpu_count <= GPUS_MAX:
        parser.error(f"--cpu-count: must be 1 to {GPUS_MAX}; got {arguments.cpu_count}")
    if not 0.1 <= arguments.interval_seconds <= 60:
        parser.error(f"--interval-seconds: must be 0.1 to 60; got {arguments.interval_seconds}")
    if not 1 <= arguments.hang_seconds <= 3600:
        parser.error(f"--hang-seconds: must be 1 to 3600; got {arguments.hang_seconds}")
    return arguments


def _memory(text: str) -> int:
    try:
        found = Memory.from_json(text, "--cpu-memory").bytes
    except FieldError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found < CPU_MEMORY_BYTES_MIN:
        raise argparse.ArgumentTypeError(f"must be at least 64Mi; got {text}")
    return found


def _devices(
    arguments: argparse.Namespace, kube: Kube, owner: OwnerOf
) -> tuple[Nvml, Callable[[], Awaitable[None]]]:
    """Returns NVML's functions, and what to await before every reading."""
    if arguments.devices == "nvml":
        return load_nvml(arguments.nvml_module), nothing
    pods = PodDevices(kube, arguments.node, owner)
    count, memory_bytes = arguments.cpu_count, arguments.cpu_memory
    beside = arguments.cpu_beside_gpus
    return cpu_devices(arguments.node, count, memory_bytes, pods, beside_gpus=beside), pods.learn


def _direct(
    arguments: argparse.Namespace, connections: WebSocketConnections
) -> DirectReadings | None:
    addresses = [one.strip() for one in arguments.readings_url.split(",") if one.strip()]
    if not addresses:
        return None
    return DirectReadings(addresses, connections.connect, time.monotonic)


@asynccontextmanager
async def _running(direct: DirectReadings | None) -> AsyncGenerator[None]:
    """Keeps the connection while the block runs."""
    task = None if direct is None else asyncio.create_task(direct.run())
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _run(arguments: argparse.Namespace) -> None:
    kube = Kube(await load_configuration(arguments.kubeconfig))
    connections = WebSocketConnections(arguments.token_file)
    direct = _direct(arguments, connections)
    publisher = Publisher(
        kube,
        arguments.node,
        interval_seconds=arguments.interval_seconds,
        agent_version=installed_version(),
        clock=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        direct=direct,
    )
    liveness = Liveness(2 * arguments.hang_seconds, time.monotonic)
    owner = remembered(OWNERS[arguments.process_owner](), start_ticks())
    nvml, prepare = _devices(arguments, kube, owner)
    agent = Agent(
        nvml,
        publisher,
        owner,
        interval_seconds=arguments.interval_seconds,
        hang_seconds=arguments.hang_seconds,
        beat=liveness.beat,
        prepare=prepare,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    try:
        async with AsyncExitStack() as stack:
            if arguments.health_listen is not None:
                address = arguments.health_listen
                serving = listening(liveness.application(), address.host, address.port)
                url = await stack.enter_async_context(serving)
                log.info("serving health", url=url)
            await stack.enter_async_context(_running(direct))
            await agent.run()
    except AgentMustEndError as error:
        print(f"gpujob-agent: {error}", file=sys.stderr, flush=True)
        # The interpreter would wait for the thread that is in the driver.
        os._exit(EXIT_RESTART)
    finally:
        await connections.close()
        await kube.close()


def main() -> int:
    """Runs the agent. Returns the exit code.

    It is 0 after SIGTERM, with a last status that reports that the agent is gone, 2 for bad input,
    and 3 if only a new container can read the GPUs.
    """
    arguments = _arguments()
    configure_logs(arguments.log_format, arguments.log_level)
    try:
        asyncio.run(_run(arguments))
    except (BadConnection, ModuleNotFoundError) as error:
        print(f"gpujob-agent: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
