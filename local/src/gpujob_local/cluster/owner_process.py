"""Shared code of processes that own a cluster: how they end, and how they report errors."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Protocol

from gpujob_local.cluster.state import ClusterState
from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.control_plane.control_plane import ClusterError
from gpujob_local.control_plane.go_toolchain import ToolError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Say = Callable[[str], None]


class OwnedCluster(Protocol):
    marker_value: str

    def user_environment(self) -> dict[str, str]: ...


def leave_on_signals() -> None:
    """Makes the first stop signal raise `SystemExit`."""
    for number in STOP_SIGNALS:
        signal.signal(number, _leave)


def ignore_signals() -> None:
    """Ignores further signals, which must not interrupt the clean-up."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def record(directory: Path, cluster: OwnedCluster) -> None:
    """Writes a record by which the command line finds the cluster and this process."""
    ClusterState(
        name=directory.name,
        owner_pid=os.getpid(),
        marker=cluster.marker_value,
        directory=str(directory),
        environment=cluster.user_environment(),
    ).write()


def run(own: Callable[[Say], None]) -> int:
    """Runs the owner and returns the exit code. Progress and errors are lines of the output."""
    try:
        own(_say)
    except (ClusterError, ToolError, ApiError, OSError) as error:
        _say(f"failed: {error}")
        return 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)
