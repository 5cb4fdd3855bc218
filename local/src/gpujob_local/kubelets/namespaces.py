"""The hub's and the nodes' namespaces, and the cables between them.

None of these is named in the machine's own network or mount table. Every namespace lives as long as
a process is in it, so a killed cluster leaves nothing behind.
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpujob_local.control_plane.control_plane import ClusterError
from gpujob_local.kubelets import init
from gpujob_local.kubelets.options import HUB_ADDRESS, HUB_NETWORK_BITS, NodePlan
from gpujob_local.processes.processes import Child, start_child

READY_LIMIT_SECONDS = 15.0
COMMAND_LIMIT_SECONDS = 15.0
POLL_SECONDS = 0.02
BRIDGE = "nodes"
# The node's own folders. Its programs keep sockets, locks and logs there.
PRIVATE_FOLDERS = ("run", "var/lib", "var/log")


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The namespaces of one running process. `enter` starts a command in them."""

    child: Child
    enter: tuple[str, ...]

    @property
    def network_file(self) -> str:
        return f"/proc/{self.child.pid}/ns/net"

    def run(self, *command: str) -> None:
        """Runs a command inside. Raises `ClusterError` with its error output if it fails."""
        done = subprocess.run(
            [*self.enter, *command],
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")


def start_hub(folder: Path, environment: Mapping[str, str]) -> Namespaces:
    """Starts a network for the control plane, with a bridge to which the nodes are connected."""
    child = _start("hub", ["--net"], [], folder, environment)
    hub = Namespaces(child, ("nsenter", f"--net=/proc/{child.pid}/ns/net", "--"))
    for command in hub_commands():
        hub.run(*command)
    return hub


def start_node(
    plan: NodePlan, hub: Namespaces, folder: Path, environment: Mapping[str, str]
) -> Namespaces:
    """Starts a node's own network, mounts and processes, connected to the hub."""
    bindings: list[str] = []
    for name in PRIVATE_FOLDERS:
        private = folder / "private" / name
        private.mkdir(parents=True, exist_ok=True)
        bindings.append(f"{private}:/{name}")
    flags = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    child = _start(plan.name, flags, bindings, folder, environment)
    proc = f"/proc/{child.pid}/ns"
    places = (f"--net={proc}/net", f"--mount={proc}/mnt", f"--pid={proc}/pid_for_children")
    node = Namespaces(child, ("nsenter", *places, "--"))
    for command in cable_commands(plan, child.pid):
        hub.run(*command)
    for command in node_commands(plan):
        node.run(*command)
    return node


def hub_commands() -> list[list[str]]:
    address = f"{HUB_ADDRESS}/{HUB_NETWORK_BITS}"
    return [
        ["ip", "link", "add", BRIDGE, "type", "bridge"],
        ["ip", "address", "add", address, "dev", BRIDGE],
        ["ip", "link", "set", BRIDGE, "up"],
    ]


def cable_commands(plan: NodePlan, process: int) -> list[list[str]]:
    """Returns commands for the hub: a cable to the namespace of a process, and the route to the
    node's pods.
    """
    peer = ["peer", "name", "eth0", "netns", str(process)]
    return [
        ["ip", "link", "add", plan.link, "type", "veth", *peer],
        ["ip", "link", "set", plan.link, "master", BRIDGE, "up"],
        ["ip", "route", "replace", plan.pod_range, "via", plan.address],
    ]


def node_commands(plan: NodePlan) -> list[list[str]]:
    address = f"{plan.address}/{HUB_NETWORK_BITS}"
    return [
        ["ip", "address", "add", address, "dev", "eth0"],
        ["ip", "link", "set", "eth0", "up"],
        ["ip", "route", "add", "default", "via", HUB_ADDRESS],
    ]


def _start(
    name: str,
    flags: Sequence[str],
    bindings: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
) -> Child:
    python = [sys.executable, "-I", "-S", init.__file__]
    log = folder / f"{name}-init.log"
    log.unlink(missing_ok=True)
    command = ["unshare", *flags, "--", *python, *bindings]
    child = start_child(f"{name}-init", command, environment, log)
    deadline = time.monotonic() + READY_LIMIT_SECONDS
    while init.READY not in child.log_tail().split():
        if not child.alive() or time.monotonic() > deadline:
            raise ClusterError(f"{name}: its namespaces were not made:\n{child.log_tail()}")
        time.sleep(POLL_SECONDS)
    return child
