"""What a pod runs: trains a workload of the benchmarks and records when each step ended.

    python bench/shared/job.py gpt2 --size small --output-dir DIR [--busy 0.2] [--steps 200]

A line of DIR/NAME.jsonl is a step: its end on the monotonic clock, its number, its loss; NAME is
the job's. With `--busy` the job waits after each step, as for its input, so that it computes that
share of the time. The first job of a kind measures how long, while it is alone, and writes it to
DIR/WORKLOAD-BUSY.wait for the others. A file DIR/NAME.heavy ends the waiting, DIR/NAME.end the job,
and DIR/NAME.hold holds it between two steps.
"""

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The first steps set libraries up. Of the others, up to this number, the median time counts.
SKIPPED_STEPS = 3
MEASURED_STEPS = 24
WAIT_SECONDS_MAX = 1.0
HELD_SECONDS = 0.002
BURNERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--size", default="small")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--busy", type=float, default=1.0)
    parser.add_argument("--grow-bytes", type=int, default=0, help="take so much more memory")
    parser.add_argument("--exact", action="store_true", help="deterministic kernels")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))

    import torch

    workload: Any = import_module(f"bench.workloads.{args.workload}")
    own = workload.get_arguments(["--size", args.size, "--steps", str(args.steps)])
    torch.use_deterministic_algorithms(args.exact, warn_only=True)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # On a processor others use the cores, and their time is not the job's.
    clock = time.monotonic if device == "cuda" else time.process_time
    files = Files(args.output_dir, f"{args.workload}-{args.busy}")
    loader = workload.get_loader(own)
    model = workload.get_model(own).to(device)
    optimizer = workload.get_optimizer(own, model)

    step, taken, began, burning = 0, [0.0], clock(), False
    while step < args.steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = workload.compute_loss(model, batch, device)
            loss.backward()
            optimizer.step()
            step += 1
            files.record(step, loss.item())
            taken = [*taken[-MEASURED_STEPS:], clock() - began]
            if device == "cpu" and files.is_heavy() and not burning:
                burning = burn(BURNERS)
            if args.busy < 1:
                time.sleep(files.wait_seconds(step, taken, args.busy))
            if args.grow_bytes and step == MEASURED_STEPS:
                files.held = torch.ones(args.grow_bytes, dtype=torch.uint8, device=device)
            files.wait_while_held()
            if step == args.steps or files.is_ended():
                break
            began = clock()
        if files.is_ended():
            break
    files.write_result(step, model)


def burn(processes: int) -> bool:
    """Starts processes that compute as long as this one lives. A processor gives a job that waits
    now and then all that it wants beside one other process; a GPU does not.
    """
    for _ in range(processes):
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                sum(range(10_000))
            os._exit(0)
    return True


class Files:
    """The files of one job in the folder that all share."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._name = os.environ.get("GPUJOB_NAME", "job")
        self._folder = folder
        self._wait = folder / f"{kind}.wait"
        self._fixed: float | None = None
        self.held: object = None

    def record(self, step: int, loss: float) -> None:
        line = json.dumps([round(time.monotonic(), 6), step, loss])
        with (self._folder / f"{self._name}.jsonl").open("a", encoding="ascii") as file:
            file.write(line + "\n")

    def wait_seconds(self, step: int, taken: list[float], busy: float) -> float:
        """How long the job waits after this step. `taken` are the last steps' times."""
        if self.is_heavy() or step <= SKIPPED_STEPS:
            return 0.0
        if self._fixed is None:
            self._fixed = self._written()
        if self._fixed is not None:
            return self._fixed
        typical = statistics.median(taken[1 + SKIPPED_STEPS :] or taken[-1:])
        seconds = min(typical * (1 / busy - 1), WAIT_SECONDS_MAX)
        if step == MEASURED_STEPS:
            self._wait.write_text(str(seconds))
        return seconds

    def _written(self) -> float | None:
        try:
            return float(self._wait.read_text())
        except (OSError, ValueError):
            return None

    def is_heavy(self) -> bool:
        return (self._folder / f"{self._name}.heavy").exists()

    def wait_while_held(self) -> None:
        """Without a limit: whoever holds the job ends it, or dies and it with him."""
        while (self._folder / f"{self._name}.hold").exists() and not self.is_ended():
            time.sleep(HELD_SECONDS)

    def is_ended(self) -> bool:
        return (self._folder / f"{self._name}.end").exists()

    def write_result(self, step: int, model: Any) -> None:
        digest = hashlib.sha256()
        for value in model.state_dict().values():
            digest.update(value.detach().cpu().numpy().tobytes())
        found = {"steps": step, "weights": digest.hexdigest()}
        (self._folder / f"{self._name}.result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
