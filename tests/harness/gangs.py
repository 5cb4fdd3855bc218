"""Several worker processes that train together, each as the worker of a pod of its own."""

import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.worker_process import WorkerRun, start_worker

OPTIONS = ("--explain", "--tuning-seconds", "1")


@dataclass
class GangRun:
    """One attempt of all of them."""

    runs: list[WorkerRun]

    def wait(self) -> list[int]:
        return [run.wait() for run in self.runs]

    @property
    def errors(self) -> str:
        return "\n".join(run.errors for run in self.runs)

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [run.report for run in self.runs]

    def said(self, rank: int = 0) -> str:
        return "\n".join(self.runs[rank].report["explain"])

    def results(self) -> list[str]:
        """What each printed last."""
        assert self.wait() == [0] * len(self.runs), self.errors
        return [run.output.splitlines()[-1] for run in self.runs]


def start_gang(
    folder: Path,
    attempt: int,
    source: str,
    *arguments: Any,
    size: int = 2,
    grace_seconds: float = 100.0,
    **settings: Any,
) -> GangRun:
    """Starts `size` processes; the script gets a fresh path for its group as the last argument."""
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(source.replace("OUT", str(folder / "out")))
    words = [str(script), *map(str, arguments), str(folder / uuid.uuid4().hex)]
    runs: list[WorkerRun] = []
    for rank in range(size):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            # Looked for, and not used: the script starts the group by a file.
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(attempt),
            "GPUJOB_GRACE_SECONDS": str(grace_seconds),
        }
        runs.append(
            start_worker(
                folder / f"attempt-{attempt}-{rank}",
                ["python", *words],
                settings={"mode": "Recommend", **settings},
                options=OPTIONS,
                environment=environment,
            )
        )
    return GangRun(runs)


def committed(folder: Path) -> list[int]:
    """Steps whose checkpoints are committed, the oldest first."""
    found = (folder / "checkpoints").glob("step-*")
    return sorted(int(path.name[5:]) for path in found if path.name[5:].isdigit())


def manifest(folder: Path, step: int) -> dict[str, Any]:
    path = folder / "checkpoints" / f"step-{step}" / "MANIFEST.json"
    return json.loads(path.read_text().splitlines()[0])


def digests_in(output: str) -> list[str]:
    """SHA-256 digests that processes printed. Lines of two processes may run together where Python
    does not buffer."""
    return re.findall(r"[0-9a-f]{64}", output)
