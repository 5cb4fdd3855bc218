"""Processor time of `kubectl gpujob`, beside kubectl's own list, on a real API server.

    python -m bench.commands [--jobs 100] [--rounds 5]

Starts etcd and kube-apiserver with the CRDs, and no operator: the jobs are pending objects. Each
command runs in a process of its own, in turns, and the processor time is its own with that of its
children, so `kubectl gpujob list` includes kubectl's. The least of all rounds counts.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import print_result
from bench.table import format_table
from bench.throughput.stack import start_cluster
from gpujob_local.control_plane.tools import find_tools

PLUGIN = Path("build") / "kubectl-gpujob"
JOBS_PATH = "/apis/gpujob.dev/v1alpha1/namespaces/default/gpujobs"
COMMANDS = (
    ("--help",), ("--version",), ("list",), ("why", "job-0"), ("gpus",), ("doctor",),
    ("logs", "job-0"),
)  # fmt: skip
COLUMNS = ("command", "processor_seconds", "wall_seconds", "of_kubectl")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.commands", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="objects in the namespace")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    kubectl = find_tools()["kubectl"]
    with start_cluster(lambda _: None) as cluster:
        client = cluster.client()
        for number in range(options.jobs):
            client.create(JOBS_PATH, _job(number))
        environment = {
            **os.environ,
            "PATH": f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.control_plane.kubeconfig),
            "KUBECACHEDIR": str(cluster.directory / "kubectl-cache"),
        }
        rows = _measure(options.rounds, environment)
    print(format_table(rows, COLUMNS))
    plugin_mib = PLUGIN.stat().st_size / 2**20 if PLUGIN.exists() else None
    print_result(rows, jobs=options.jobs, plugin_mib=plugin_mib)
    return 0


def _job(number: int) -> dict[str, Any]:
    container = {"name": "worker", "image": "image:1", "command": ["train"]}
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUJob",
        "metadata": {"name": f"job-{number}"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def _measure(rounds: int, environment: dict[str, str]) -> list[dict[str, Any]]:
    peer = ["kubectl", "get", "gpujobs"]
    commands = {"kubectl get gpujobs": peer}
    for words in COMMANDS:
        ours = [sys.executable, "-m", "kubectl_gpujob", *words]
        commands[f"kubectl gpujob {' '.join(words)}"] = ours
    least: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, command in commands.items():
            found = _run(command, environment)
            known = least.get(name, found)
            least[name] = min(known[0], found[0]), min(known[1], found[1])
    of_peer = least["kubectl get gpujobs"][0]
    return [
        {
            "command": name,
            "processor_seconds": round(processor, 3),
            "wall_seconds": round(wall, 3),
            "of_kubectl": round(processor / of_peer, 2),
        }
        for name, (processor, wall) in least.items()
    ]


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Returns the processor and the wall seconds of a command with its children."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
