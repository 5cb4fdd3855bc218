"""The process that owns a named cluster of kubelets.

`python -m gpujob_local.kubelets.owner DIRECTORY OPTIONS.json`. It starts the cluster and ends it on
SIGTERM, SIGINT or SIGHUP. When it is killed, the kernel ends what it started, and `down` or the
next `up` removes the rest.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from gpujob_local.cluster.state import ClusterState
from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.control_plane.control_plane import ClusterError, ControlPlaneOptions
from gpujob_local.control_plane.go_toolchain import ToolError
from gpujob_local.kubelets.cluster import KubeletCluster
from gpujob_local.kubelets.options import KubeletOptions

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def options_to_text(options: KubeletOptions) -> str:
    return json.dumps(asdict(options))


def options_from_text(text: str) -> KubeletOptions:
    data = json.loads(text)
    data["control_plane"] = ControlPlaneOptions(**data["control_plane"])
    return KubeletOptions(**data)


def own(directory: Path, options: KubeletOptions, say: Callable[[str], None]) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, _leave)
    try:
        cluster = KubeletCluster.start(options, directory, say)
        try:
            ClusterState(
                name=directory.name,
                owner_pid=os.getpid(),
                marker=cluster.marker_value,
                directory=str(directory),
                environment=cluster.user_environment(),
            ).write()
            threading.Event().wait()
        finally:
            # A second signal must not interrupt the clean-up.
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            cluster.stop()
    except SystemExit:
        return


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def main(directory: str, options_file: str) -> int:
    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    try:
        own(Path(directory), options_from_text(Path(options_file).read_text()), say)
    except (ClusterError, ToolError, ApiError, OSError) as error:
        say(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
