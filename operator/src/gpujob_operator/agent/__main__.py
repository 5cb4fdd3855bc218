"""`gpujob-agent`: measures the GPUs of one node and publishes them as its GPUNode."""

import argparse
import asyncio
import os
import signal
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version

from gpujob_operator.act.connection import BadConnection, load_configuration
from gpujob_operator.act.kube import Kube
from gpujob_operator.agent.agent import Agent
from gpujob_operator.agent.nvml import load_nvml
from gpujob_operator.agent.owners import (
    owner_by_cgroup,
    owner_by_environment,
    remembered,
    start_ticks,
)
from gpujob_operator.agent.publish import Publisher
from gpujob_operator.logs import configure_logs

EXIT_USAGE = 2
OWNERS = {"cgroup": owner_by_cgroup, "environment": owner_by_environment}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpujob-agent", description=__doc__)
    add = parser.add_argument
    add("--kubeconfig", help="without it: the pod's service account")
    add("--node", default=os.environ.get("NODE_NAME"), help="default: $NODE_NAME")
    add(
        "--nvml-module",
        default="pynvml",
        help="dotted name of a module with the functions of pynvml",
    )
    add("--process-owner", choices=sorted(OWNERS), default="cgroup")
    add("--interval-seconds", type=float, default=2.0)
    add("--log-format", choices=("json", "text"), default="json")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    arguments = parser.parse_args()
    if not arguments.node:
        parser.error("--node is required where NODE_NAME is not set")
    if not 0.1 <= arguments.interval_seconds <= 60:
        parser.error(f"--interval-seconds: must be 0.1 to 60; got {arguments.interval_seconds}")
    return arguments


async def _run(arguments: argparse.Namespace) -> None:
    kube = Kube(await load_configuration(arguments.kubeconfig))
    publisher = Publisher(
        kube,
        arguments.node,
        interval_seconds=arguments.interval_seconds,
        agent_version=version("gpujob"),
        clock=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
    )
    agent = Agent(
        load_nvml(arguments.nvml_module),
        publisher,
        remembered(OWNERS[arguments.process_owner](), start_ticks()),
        interval_seconds=arguments.interval_seconds,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    try:
        await agent.run()
    finally:
        await kube.close()


def main() -> int:
    """Exit codes: 0 after SIGTERM, with a last status that says the agent is gone; 2 bad input."""
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
