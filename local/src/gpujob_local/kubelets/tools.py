"""The programs of a cluster of real kubelets: found, or built once.

`python -m gpujob_local.kubelets.tools` does that before scenes with their own limit, because it
takes minutes on a fresh machine. If no kubelet can run, it prints why and builds nothing.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from gpujob_local.control_plane.go_toolchain import ToolError
from gpujob_local.control_plane.tools import find_tools
from gpujob_local.kubelets.requirements import Machine, refusal

TOOL_SETS = ("kubernetes", "kubelet", "containerd", "coredns", "helm")

Say = Callable[[str], None]


def kubelet_tools(say: Say) -> dict[str, Path]:
    """Returns the paths of all programs by name. Raises `ToolError` if one cannot be built."""
    found: dict[str, Path] = {}
    for tools in TOOL_SETS:
        found |= find_tools(tools, say)
    return found


def main(machine: Machine, say: Say) -> int:
    """Returns the exit code: 1 if a program cannot be built."""
    if words := refusal(machine):
        say(f"nothing is built for real kubelets: {words}")
        return 0
    try:
        kubelet_tools(say)
    except ToolError as error:
        say(str(error))
        return 1
    return 0


def _print(text: str) -> None:
    sys.stderr.write(f"tools: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(Machine.look(), _print))
