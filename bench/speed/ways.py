"""How each way of training a workload is started: as written, injected, by hand, by a finder."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.turns.conductor import ROOT, Entry
from gpujob_worker.tune.settings import FEATURES

WORKLOADS = ("resnet50", "gpt2", "bert", "vit", "recommender")
PLAIN, AGAIN, AUTO, COMPILED, BY_HAND = "plain", "plain again", "auto", "auto, compiled", "by hand"
ACCELERATE, LIGHTNING = "accelerate", "lightning"
# What the names of ways begin with that have one item alone.
ALONE = "only "
# What is left out first where a GPU is lent for minutes: single items, then the search by hand.
OPTIONAL = ("compiled", "hand", "alone")
STEPS_MANY = 1_000_000
# The first block comes after the worker's last trial. Of loader workers: 7 steps up to the tuning,
# one that is not timed, 10 without workers, one until they start, twice 5 to settle and 20 with
# them, and the one at whose batch they are judged; one more if a pass would begin with the trial.
# On a GPU a step's time is known one later, and pinned memory is tried afterwards, for 10 + 5 + 20
# steps.
FREE_STEPS = {"cpu": 71, "cuda": 107}
# Without these trials: 7 up to the tuning, 10 to confirm.
FREE_STEPS_NO_TRIAL = 20
_LOADER_FEATURE, _LOADER_SETTING = "data_loader", "dataLoading"


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a run is: the workloads' size, blocks of steps, and limits on time."""

    device: str
    size: str
    block_steps: int
    rounds: int
    hand_seconds: float
    compile: bool
    tuning_seconds: float = 12.0
    batch_factor_when_tight: int = 1
    threads: int | None = None
    # Why nothing is compiled although the size asks for it.
    compile_refusal: str | None = None
    # Of `OPTIONAL`; nothing is compiled by hand either without "compiled".
    ways: tuple[str, ...] = OPTIONAL

    @property
    def environment(self) -> dict[str, str]:
        """One thread on the CPU: more of them wait for each other when others use the cores."""
        values = {} if self.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        if self.threads is not None:
            values |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        return values


SCALES = {
    ("cpu", True): Scale("cpu", "tiny", 4, 8, 6.0, False, batch_factor_when_tight=8, threads=1),
    ("cpu", False): Scale("cpu", "small", 4, 16, 60.0, True, batch_factor_when_tight=8, threads=1),
    ("cuda", True): Scale("cuda", "small", 8, 8, 6.0, False),
    ("cuda", False): Scale("cuda", "full", 4, 10, 8.0, True),
}


def scale_of(device: str, *, quick: bool) -> Scale:
    return SCALES[device, quick]


def workload_module(name: str) -> Any:
    """The script as a module, for those who train it by hand."""
    return import_module(f"bench.workloads.{name}")


def batch_size(name: str, scale: Scale) -> int:
    return int(workload_module(name).SIZES[scale.size]["batch"])


def script(name: str, scale: Scale, batch: int | None = None) -> list[str]:
    """The script and its arguments, as a user gives them."""
    arguments = ["--size", scale.size, "--steps", str(STEPS_MANY)]
    if batch is not None:
        arguments += ["--batch-size", str(batch)]
    return [str(ROOT / "bench" / "workloads" / f"{name}.py"), *arguments]


def plain(
    label: str,
    workload: str,
    scale: Scale,
    batch: int | None = None,
    *,
    beside_trials: bool = True,
) -> Entry:
    """As written. With `beside_trials` its blocks are of the same steps, and so of the same
    batches, as those of a worker that tries its data loader.
    """
    command = [sys.executable, *script(workload, scale, batch)]
    free_steps = FREE_STEPS[scale.device] if beside_trials else FREE_STEPS_NO_TRIAL
    return Entry(label, command, scale.environment, free_steps)


def injected(
    label: str,
    workload: str,
    scale: Scale,
    *,
    url: str | None,
    settings: Mapping[str, Any] | None = None,
    only: str | None = None,
    without: Sequence[str] = (),
    batch: int | None = None,
    limit_bytes: int | None = None,
) -> Entry:
    """Through the real launcher; `only` names the one item that is left on."""
    off = set(FEATURES) - {only} if only is not None else set(without)
    options = [f"--no-{name.replace('_', '-')}" for name in sorted(off)]
    options += ["--explain", "--tuning-seconds", str(scale.tuning_seconds)]
    environment = {
        **scale.environment,
        "GPUJOB_SETTINGS": json.dumps(dict(settings or {})),
    }
    if url is not None:
        environment["GPUJOB_REPORT_URL"] = url
    if limit_bytes is not None:
        environment["GPUJOB_MEMORY_LIMIT_BYTES"] = str(limit_bytes)
    command = [sys.executable, "-m", "gpujob_worker", *options, "--", "python"]
    command += script(workload, scale, batch)
    tries_loader = _LOADER_FEATURE not in off and (settings or {}).get(_LOADER_SETTING) != "Off"
    free_steps = FREE_STEPS[scale.device] if tries_loader else FREE_STEPS_NO_TRIAL
    # No fence: the worker keeps to what is resident, as a CPU card measures it, and on a GPU it
    # limits the allocator itself. Whether the limit is kept is seen in the peak.
    return Entry(label, command, environment, free_steps)


def resumable(
    entry: Entry, checkpoints: Path, checkout: Path | None = None, *, saves: bool = False
) -> Entry:
    """The same with a directory for checkpoints, in which none is due for days, or one a block."""
    settings = json.loads(entry.environment["GPUJOB_SETTINGS"])
    own = {
        "GPUJOB_CHECKPOINT_DIR": str(checkpoints),
        "GPUJOB_SETTINGS": json.dumps({**settings, "checkpointIntervalSeconds": 10**6}),
    }
    return replace(
        entry,
        environment={**entry.environment, **own},
        checkout=checkout or ROOT,
        saves=checkpoints if saves else None,
    )


def by_hand(workload: str, scale: Scale) -> Entry:
    command = [sys.executable, "-m", "bench.speed.hand", workload, "--size", scale.size]
    command += ["--seconds", str(scale.hand_seconds), "--steps", str(scale.block_steps)]
    if scale.compile:
        command.append("--compile")
    return Entry(BY_HAND, command, scale.environment, None)


def finder(label: str, workload: str, scale: Scale, batch: int, limit_bytes: int) -> Entry:
    command = [sys.executable, "-m", "bench.speed.finders", label, workload]
    command += ["--size", scale.size, "--batch-size", str(batch)]
    command += ["--limit-bytes", str(limit_bytes)]
    return Entry(label, command, scale.environment, None, limit_bytes)
