"""An agent of a local cluster whose GPUs say what a file says."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.programs import agent_command
from gpujob_local.cluster.setup import AGENT_ACCOUNT, account_token
from gpujob_local.gpus.scripted_nvml import SCRIPT_VARIABLE
from gpujob_local.processes.processes import MARKER, Child, start_child


@contextmanager
def scripted_agent(cluster: LocalCluster, node: str, script: Path) -> Generator[Child]:
    """In the place of the node's own agent, which is started again afterwards."""
    cluster.kill_agent(node)
    kubeconfig = cluster.directory / f"scripted-{node}.kubeconfig"
    token = account_token(cluster.client(), AGENT_ACCOUNT)
    cluster.control_plane.token_identity(token).write_kubeconfig(kubeconfig)
    command = agent_command(node, kubeconfig, cluster.options.agent_interval_seconds)
    command = [word.replace("cpu_nvml", "scripted_nvml") for word in command]
    name = f"agent-{node}"
    child = start_child(
        name,
        command,
        {MARKER: cluster.marker_value, SCRIPT_VARIABLE: str(script)},
        cluster.directory / "logs" / f"{name}.log",
        folder=cluster.directory,
    )
    cluster.children[name] = child
    try:
        yield child
    finally:
        cluster.kill_agent(node)
        cluster.start_agent(node)
