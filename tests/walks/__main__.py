"""How far one thing walks through the code: files, functions and calls from file to file.

    python -m tests.walks

- `event to pod`: a GPUJob's watch event, a snapshot, a plan, and the writes until its pod exists;
- `ordinary step`: one training step before tuning;
- `tuning`: the steps in which the worker tries settings and applies one;
- `stop`: from SIGTERM to a committed checkpoint and exit code 143;
- `resume`: from the start of the next attempt until it has made a step.

Prints a table, and one JSON object as its last line. The first two walks are the same each time,
with the same versions of Python and torch. The others depend on which settings are found faster.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpujob_operator.client.kube import JOBS
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.planner import plan
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_gpu, make_job
from tests.harness.executor_bench import PlacingBench
from tests.harness.manifests import gpu_node_manifest, job_manifest, node_manifest
from tests.walks.tracer import OUTPUT, WALK, Walk

SCRIPT = Path(__file__).with_name("script.py")
ROOT = Path(__file__).parents[2]
COLUMNS = ("files", "functions", "crossings")
LIMIT_SECONDS = 300
STOPPED = 143


async def event_to_pod() -> dict[str, int]:
    bench = PlacingBench()
    cache = Cache(Dirty(), Metrics(), bench.clock.now)
    for kind in Kind:
        cache.resync(kind, [], "1")
    cache.apply(Kind.NODE, "ADDED", node_manifest(version=2))
    at = bench.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    gpu_node = gpu_node_manifest("n0", make_gpu(), version=3, observed_at=at)
    cache.apply(Kind.GPU_NODE, "ADDED", gpu_node)
    configuration = Configuration(report_url="http://operator/report")
    first = cache.snapshot((), configuration)
    decided = SchedulerCache.of(first)
    plan(first, bench.clock.now(), decided)
    stored = bench.kube.put(JOBS, job_manifest(make_job()))
    walk = Walk()
    walk.start()
    cache.apply(Kind.JOB, "ADDED", stored)
    bench.executor.submit(plan(cache.snapshot((), configuration), bench.clock.now(), decided))
    await bench.executor.drain(5)
    walk.stop()
    if ("create", "job-1-0") not in bench.verbs():
        raise AssertionError(f"no pod was created: {bench.verbs()}")
    return walk.counts()


def of_worker(name: str, folder: Path, expected: int = 0) -> dict[str, int]:
    """The counts of the script, run under the worker. Checkpoints stay in the folder."""
    output = folder / f"{name}.json"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
        WALK: name,
        OUTPUT: str(output),
    }
    command = [sys.executable, "-m", "gpujob_worker", "--", sys.executable, str(SCRIPT)]
    ended = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        timeout=LIMIT_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != expected:
        raise AssertionError(f"{name}: exit {ended.returncode}\n{ended.stderr[-2000:]}")
    return json.loads(output.read_text())


def walks() -> dict[str, dict[str, int]]:
    found = {"event to pod": asyncio.run(event_to_pod())}
    with tempfile.TemporaryDirectory(prefix="walks-") as name:
        folder = Path(name)
        found["ordinary step"] = of_worker("step", folder / _made(folder, "a"))
        found["tuning"] = of_worker("tuning", folder / _made(folder, "b"))
        last = folder / _made(folder, "c")
        found["stop"] = of_worker("stop", last, STOPPED)
        found["resume"] = of_worker("resume", last)
    return found


def _made(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name


def table(found: Mapping[str, Mapping[str, int]]) -> str:
    lines = [f"{'walk':14}" + "".join(f"{column:>11}" for column in COLUMNS)]
    for name, counts in found.items():
        lines.append(f"{name:14}" + "".join(f"{counts[column]:>11}" for column in COLUMNS))
    return "\n".join(lines)


if __name__ == "__main__":
    results = walks()
    print(table(results))
    print(json.dumps(results))
