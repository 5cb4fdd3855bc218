"""A node's agent for NetworkPolicies: `agent.py NODE KUBECONFIG`, in the node's namespaces.

It watches policies, pods and namespaces, and makes iptables drop what they do not allow. When it
ends, the rules stay as they were, as with any such agent, and are removed with the node's
namespace.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from gpujob_local.control_plane.identity import Identity
from gpujob_local.kubelet.node_api import NodeApi
from gpujob_local.kubelets.network_policies.peers import Json, World
from gpujob_local.kubelets.network_policies.rules import Chains, chains_of_node
from gpujob_local.kubelets.network_policies.tables import TABLE, restore_text

PATHS = ("/api/v1/namespaces", "/api/v1/pods", "/apis/networking.k8s.io/v1/networkpolicies")
# Changes that come together cause one change of the rules.
GATHER_SECONDS = 0.1
RETRY_SECONDS = 1.0
COMMAND_LIMIT_SECONDS = 15.0


class Agent:
    """The known objects of the cluster, and the rules made from them."""

    def __init__(self, node: str, api: NodeApi) -> None:
        self._node = node
        self._api = api
        self._known: dict[str, dict[str, Json]] = {}
        self._changed = asyncio.Event()
        self._applied: Chains | None = None

    async def run(self) -> None:
        """Runs endlessly."""
        async with asyncio.TaskGroup() as tasks:
            for path in PATHS:
                tasks.create_task(self._follow(path))
            while True:
                await self._changed.wait()
                await asyncio.sleep(GATHER_SECONDS)
                self._changed.clear()
                await self._apply()

    async def _follow(self, path: str) -> None:
        async for kind, value in self._api.watch(path):
            if kind == "SYNC":
                self._known[path] = {one["metadata"]["uid"]: one for one in value}
            elif kind == "DELETED":
                self._known[path].pop(value["metadata"]["uid"], None)
            else:
                self._known[path][value["metadata"]["uid"]] = value
            self._changed.set()

    async def _apply(self) -> None:
        if len(self._known) < len(PATHS):
            return
        namespaces, pods, policies = (self._known[path].values() for path in PATHS)
        wanted = chains_of_node(self._node, World.of(pods, namespaces), policies)
        if wanted == self._applied:
            return
        try:
            await asyncio.to_thread(write, wanted)
        except (OSError, subprocess.SubprocessError) as error:
            say(f"not applied, again in {RETRY_SECONDS:.0f} s: {error}")
            await asyncio.sleep(RETRY_SECONDS)
            self._changed.set()
            return
        self._applied = wanted
        say(f"{len(wanted) - 1} chains of pods, {sum(map(len, wanted.values()))} rules")


def write(wanted: Chains) -> None:
    """Applies the chains. Raises `OSError` with the error output if iptables refuses."""
    saved = _run(["iptables-save", "-t", TABLE], "")
    _run(["iptables-restore", "--noflush", "--wait"], restore_text(wanted, saved))


def _run(command: list[str], text: str) -> str:
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def serve(node: str, kubeconfig: Path) -> None:
    async with NodeApi(Identity.read_kubeconfig(kubeconfig)) as api:
        await Agent(node, api).run()


def main(node: str, kubeconfig: str) -> int:
    asyncio.run(serve(node, Path(kubeconfig)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
