"""The process that owns a named cluster of kubelets.

`python -m gpujob_local.kubelets.owner DIRECTORY OPTIONS.json`. It starts the cluster and ends it on
SIGTERM, SIGINT or SIGHUP. If it is killed, the kernel ends its processes, and `down` or the next
`up` removes the rest.
"""

import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from gpujob_local.cluster.owner_process import Say, ignore_signals, leave_on_signals, record, run
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.kubelets.cluster import KubeletCluster
from gpujob_local.kubelets.options import KubeletOptions


def options_to_text(options: KubeletOptions) -> str:
    return json.dumps(asdict(options))


def options_from_text(text: str) -> KubeletOptions:
    data = json.loads(text)
    data["control_plane"] = ControlPlaneOptions(**data["control_plane"])
    return KubeletOptions(**data)


def own(directory: Path, options: KubeletOptions, say: Say) -> None:
    leave_on_signals()
    try:
        cluster = KubeletCluster.start(options, directory, say)
        try:
            record(directory, cluster)
            threading.Event().wait()
        finally:
            ignore_signals()
            cluster.stop()
    except SystemExit:
        return


def main(directory: str, options_file: str) -> int:
    options = options_from_text(Path(options_file).read_text())
    return run(lambda say: own(Path(directory), options, say))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
