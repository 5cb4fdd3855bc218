"""A process that reads GPUs as the agent does, through pynvml, each time it is asked to.

A line on its input is a command. `begin FOLDER` begins as the first agent of a node, with a tree
like /proc in that folder; `restart` as a new agent does, which knows what the one before published;
`read` answers with a line of JSON, the GPUs or the error. Each reading counts as published.
"""

import json
import sys
from pathlib import Path

from gpujob_api.codec import encode
from gpujob_api.gpunode import GPU
from gpujob_operator.agent.nvml import load_nvml
from gpujob_operator.agent.owners import owner_by_cgroup, remembered, start_ticks
from gpujob_operator.agent.session import NvmlSession


def _begin(proc: Path, known: tuple[GPU, ...]) -> NvmlSession:
    owner = remembered(owner_by_cgroup(proc), start_ticks(proc))
    return NvmlSession(load_nvml("pynvml"), owner, known)


def _answer(session: NvmlSession) -> tuple[dict[str, object], tuple[GPU, ...]]:
    try:
        reading = session.read()
        session.published()
    except session.nvml.NVMLError as error:
        return {"error": str(error), "code": error.value}, ()
    told: dict[str, object] = {
        "gpus": [encode(gpu) for gpu in reading.gpus],
        "unread": list(reading.unread),
        "driver": reading.driver_version,
    }
    return told, reading.gpus


def main() -> None:
    known: tuple[GPU, ...] = ()
    proc = Path("/proc")
    session = _begin(proc, known)
    for line in sys.stdin:
        command, _, folder = line.strip().partition(" ")
        if command == "read":
            answer, gpus = _answer(session)
            known = gpus or known
            print(json.dumps(answer, default=str), flush=True)
            continue
        session.close()
        proc, known = (Path(folder), ()) if command == "begin" else (proc, known)
        session = _begin(proc, known)


if __name__ == "__main__":
    main()
