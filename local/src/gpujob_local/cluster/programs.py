"""Command lines of the operator and the agent. A local cluster runs them as programs and imports
neither.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpujob_local.control_plane.control_plane import ClusterError

CPU_NVML = "gpujob_local.gpus.cpu_nvml"
GPU_NVML = "gpujob_local.gpus.node_nvml"


def agent_command(
    node: str, kubeconfig: Path, interval_seconds: float, nvml_module: str = CPU_NVML
) -> list[str]:
    """Returns the agent's command. Raises `ClusterError` if the agent is not installed."""
    _require_operator()
    options = {
        "node": node,
        "kubeconfig": str(kubeconfig),
        "process-owner": "environment",
        "nvml-module": nvml_module,
        "interval-seconds": str(interval_seconds),
    }
    return [sys.executable, "-m", "gpujob_operator.agent", *_flags(options)]


def operator_command(options: Mapping[str, str], more: Sequence[str]) -> list[str]:
    """Returns the operator's command. Raises `ClusterError` if the operator is not installed."""
    _require_operator()
    return [sys.executable, "-m", "gpujob_operator", "run", *_flags(options), *more]


def _flags(options: Mapping[str, str]) -> list[str]:
    return [part for key, value in options.items() for part in (f"--{key}", value)]


def _require_operator() -> None:
    if importlib.util.find_spec("gpujob_operator") is None:
        raise ClusterError("the operator is not installed: pip install gpujob[operator]")
