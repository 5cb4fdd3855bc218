"""What it gains to dispatch a batch at its deadline instead of at once, and what it costs.

    python -m bench.batching [--quick] [--parts virtual,bursts,noise,eager,onnx,overhead]
        [--device cuda]

- `virtual`: the product's rules in virtual time, on a device whose batches take exactly
  fixed + per_sample * b, under Poisson arrivals. GPU time of Deadline against that of Immediate,
  and of the best fixed delay: the one of 20 with the least GPU time that keeps 99.9 % of the
  requests within the objective. `load` is the rate times the time of one sample.
- `bursts`: ten times the load for a second. `goodput` is of requests answered within the objective,
  against the most that the device can do in batches of the largest size; `kept` is the share of
  the admitted ones that kept the objective.
- `noise`: the first again, on a device whose batches vary by 10 %, and one of a hundred takes three
  times as long. The objective is one of the 99th percentile.
- `eager`, `onnx`: the real batcher and a real model on the CPU, one thread, requests that do not
  wait for answers. The policies take turns with the same arrivals. Latencies begin with the call
  of `submit`. `processor_ms` is the model's processor time for each answered request, and
  `clock_ms` is the time of its batches, copies included. On a GPU the latter is compared, and the
  model is the encoder of BERT-base in bfloat16.
- `overhead`: the batcher's own time for each request, with a device without cost.

A goal that is not met is printed as such.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from bench.batching.backends import PROVIDERS, Eager, OnnxRuntime, encoder, model, samples_of
from bench.batching.live import compare, median_milliseconds, overhead
from bench.batching.policies import FixedDelay, Profile, delays, ours
from bench.batching.virtual import Device, Played, play, poisson
from bench.machine import print_result
from bench.table import format_table
from gpujob_api.serving import BatchingPolicy, Objective
from gpujob_worker.serving.backend import Backend
from gpujob_worker.serving.batch_time import Line

PROFILES = (
    Profile(Line(0.00192, 0.00006), 10.0),
    Profile(Line(0.001, 0.00015), 15.0),
)
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
RATES = (300, 500, 1000, 4000)
REQUESTS, REQUESTS_QUICK = 30_000, 3000
# Minutes with a GPU are rare.
ROUNDS, ROUNDS_QUICK = {"cpu": 3, "cuda": 2}, 1
SIZES = (1, 4, 16, 64)
ROUND_SECONDS, ROUND_SECONDS_QUICK = 5.0, 1.0
# The objective of the real model, in times of one sample: the table of virtual loads has 5 and 13.
LIVE_OBJECTIVE = 10.0
LIVE_LOADS = (0.2, 0.4, 0.6)
# What the policies are compared by: the column, and its name in a goal.
COSTS = {"cpu": ("processor_ms", "processor time"), "cuda": ("clock_ms", "time of batches")}
OVERHEAD_REQUESTS, OVERHEAD_REQUESTS_QUICK = 40_000, 2000
RATIO_GOAL, WITHIN_GOAL_PERCENT, OVERHEAD_GOAL_MICROSECONDS = 0.45, 99.9, 100.0
GOODPUT_GOAL = 0.9
PARTS = ("virtual", "bursts", "noise", "eager", "onnx", "overhead")

VIRTUAL_COLUMNS = (
    "device",
    "rate",
    "load",
    "immediate_busy",
    "fixed_busy",
    "fixed_ms",
    "deadline_busy",
    "batch",
    "p99_ms",
    "within_percent",
    "of_immediate",
    "of_fixed",
)
BURST_COLUMNS = ("device", "policy", "rate", "burst", "refused_percent", "goodput", "kept_percent")
NOISE_COLUMNS = ("device", "rate", "policy", "busy", "p99_ms", "within_percent", "refused")
LIVE_COLUMNS = (
    "backend",
    "rate",
    "policy",
    "processor_ms",
    "of_immediate",
    "clock_ms",
    "batch",
    "p50_ms",
    "p99_ms",
    "within_percent",
    "refused",
    "generator_late_p99_ms",
)
OVERHEAD_COLUMNS = ("policy", "at_a_time", "requests", "clock_us", "processor_us")

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Goal:
    text: str
    figure: float
    bound: float
    at_most: bool

    def row(self) -> dict[str, Any]:
        met = self.figure <= self.bound if self.at_most else self.figure >= self.bound
        sign = "<=" if self.at_most else ">="
        return {
            "goal": f"{self.text} {sign} {self.bound:g}",
            "figure": self.figure,
            "met": "met" if met else "NOT MET",
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.batching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few requests: figures are rough")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    parser.add_argument("--device", choices=tuple(PROVIDERS), default="cpu", help="of the models")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        parser.error(f"--parts: {', '.join(unknown)} is none of {', '.join(PARTS)}")
    torch.set_num_threads(1)
    results: dict[str, Rows] = {}
    goals: list[Goal] = []
    for part in parts:
        _PARTS[part](options, results, goals)
    rows = [goal.row() for goal in goals]
    print("\nGoals")
    print(format_table(rows, ("goal", "figure", "met")))
    every = [{"part": part, **row} for part, found in results.items() for row in found]
    print_result(every, bench="batching", device=options.device, goals=rows)
    return 0


def _show(title: str, rows: Rows, columns: Sequence[str]) -> None:
    print(f"\n{title}")
    print(format_table(rows, columns), flush=True)


def measure_virtual(
    options: argparse.Namespace, results: dict[str, Rows], goals: list[Goal]
) -> None:
    count = REQUESTS_QUICK if options.quick else REQUESTS
    rows = results["virtual"] = []
    for profile in PROFILES:
        by_load = [round(load / profile.line.seconds(1)) for load in LOADS]
        for rate in sorted({*by_load, *RATES}):
            row = virtual_row(profile, rate, count)
            rows.append(row)
            of = f"{profile.text()}, {rate}/s: "
            ratio = row["of_immediate"]
            goals.append(Goal(f"{of}GPU time of Immediate's", ratio, RATIO_GOAL, True))
            goals.append(Goal(f"{of}of the best fixed delay's", row["of_fixed"], 1.0, True))
            within = row["within_percent"]
            goals.append(Goal(f"{of}% within the objective", within, WITHIN_GOAL_PERCENT, False))
    _show("Virtual time, exact device", rows, VIRTUAL_COLUMNS)


def virtual_row(profile: Profile, rate: int, count: int) -> dict[str, Any]:
    moments = poisson(rate, count, seed=1)
    objective = profile.objective_milliseconds / 1000

    def device(size: int, now: float) -> float:
        return profile.line.seconds(size)

    queue = ours(profile, BatchingPolicy.DEADLINE)
    deadline = play(moments, queue, device)
    immediate = play(moments, ours(profile, BatchingPolicy.IMMEDIATE), device)
    fixed: tuple[float, float] | None = None
    for delay in delays(objective):
        played = play(moments, FixedDelay(delay, queue.size_max), device)
        kept = 100 * played.within(objective) / count >= WITHIN_GOAL_PERCENT
        if kept and (fixed is None or played.busy_seconds < fixed[0]):
            fixed = (played.busy_seconds, delay)
    return {
        "device": profile.text(),
        "rate": rate,
        "load": rate * profile.line.seconds(1),
        "immediate_busy": immediate.busy_seconds / immediate.seconds,
        "fixed_busy": fixed[0] / deadline.seconds if fixed else None,
        "fixed_ms": 1000 * fixed[1] if fixed else None,
        "deadline_busy": deadline.busy_seconds / deadline.seconds,
        "batch": count / len(deadline.dispatched),
        "p99_ms": 1000 * deadline.percentile(99),
        "within_percent": 100 * deadline.within(objective) / count,
        "refused": len(deadline.refused),
        # For each answered request, so that refusals do not look like savings.
        "of_immediate": _per_request(deadline) / _per_request(immediate),
        "of_fixed": _per_request(deadline) * count / fixed[0] if fixed else 0.0,
    }


def _per_request(played: Played) -> float:
    return played.busy_seconds / len(played.latencies)


def measure_bursts(
    options: argparse.Namespace, results: dict[str, Rows], goals: list[Goal]
) -> None:
    rows = results["bursts"] = []
    for profile in PROFILES:
        for policy in (BatchingPolicy.IMMEDIATE, BatchingPolicy.DEADLINE):
            row = burst_row(profile, policy)
            rows.append(row)
            of = f"{profile.text()}, 10x burst, {policy.value}: "
            goals.append(Goal(f"{of}goodput of the most", row["goodput"], GOODPUT_GOAL, False))
            kept = row["kept_percent"]
            goals.append(Goal(f"{of}% of the admitted", kept, WITHIN_GOAL_PERCENT, False))
    _show("Ten times the load for a second", rows, BURST_COLUMNS)


def burst_row(profile: Profile, policy: BatchingPolicy) -> dict[str, Any]:
    """The load is 30 % of the most, and three times the most in the burst."""
    objective = profile.objective_milliseconds / 1000
    # A batch takes half of the objective at most, so that a request may wait for another one.
    size = int((objective / 2 - profile.line.fixed_seconds) / profile.line.per_sample_seconds)
    most = size / profile.line.seconds(size)
    rate = round(0.3 * most)
    calm = poisson(rate, rate, seed=1)
    burst = [calm[-1] + moment for moment in poisson(10 * rate, 10 * rate, seed=2)]
    after = [burst[-1] + moment for moment in poisson(rate, rate, seed=3)]
    queue = ours(profile, policy)
    found = play([*calm, *burst, *after], queue, lambda size, _: profile.line.seconds(size))
    in_burst = range(len(calm), len(calm) + len(burst))
    kept = sum(found.latencies.get(index, objective + 1) <= objective for index in in_burst)
    refused = sum(index in found.refused for index in in_burst)
    return {
        "device": profile.text(),
        "policy": policy.value,
        "rate": rate,
        "burst": 10 * rate,
        "refused_percent": 100 * refused / len(burst),
        "goodput": kept / (burst[-1] - calm[-1]) / most,
        "kept_percent": 100 * found.within(objective) / len(found.latencies),
    }


def noisy(profile: Profile, seed: int) -> Device:
    rng = random.Random(seed)

    def seconds(size: int, now: float) -> float:
        spike = 3.0 if rng.random() < 0.01 else 1.0
        return profile.line.seconds(size) * rng.lognormvariate(0, 0.1) * spike

    return seconds


def measure_noise(options: argparse.Namespace, results: dict[str, Rows], goals: list[Goal]) -> None:
    rows = results["noise"] = []
    count = REQUESTS_QUICK if options.quick else REQUESTS
    for profile in PROFILES:
        objective = profile.objective_milliseconds / 1000
        for rate in RATES:
            for policy in (BatchingPolicy.IMMEDIATE, BatchingPolicy.DEADLINE):
                found = play(
                    poisson(rate, count, seed=1), ours(profile, policy), noisy(profile, rate)
                )
                within = 100 * found.within(objective) / count
                rows.append(
                    {
                        "device": profile.text(),
                        "rate": rate,
                        "policy": policy.value,
                        "busy": found.busy_seconds / found.seconds,
                        "p99_ms": 1000 * found.percentile(99),
                        "within_percent": within,
                        "refused": len(found.refused),
                    }
                )
                if policy is BatchingPolicy.DEADLINE:
                    of = f"{profile.text()}, {rate}/s, noise: % within the objective"
                    goals.append(Goal(of, within, 99.0, False))
    _show("Virtual time, batches vary by 10 %, 1 % take three times as long", rows, NOISE_COLUMNS)


def measure_eager(options: argparse.Namespace, results: dict[str, Rows], goals: list[Goal]) -> None:
    module = encoder() if options.device == "cuda" else model()
    backend = Eager(module, options.device)
    _measure_live("eager", backend, module, options, results, goals)


def measure_onnx(options: argparse.Namespace, results: dict[str, Rows], goals: list[Goal]) -> None:
    absent = [name for name in ("onnxruntime", "onnx") if find_spec(name) is None]
    if absent:
        print(f"\nONNX Runtime: not measured, because {' and '.join(absent)} is not installed")
        return
    provider = PROVIDERS[options.device]
    if provider not in import_module("onnxruntime").get_available_providers():
        print(f"\nONNX Runtime: not measured, because it has no {provider} here")
        return
    module = model()
    backend = OnnxRuntime(module, options.device)
    _measure_live("onnx", backend, module, options, results, goals)


def _measure_live(
    part: str,
    backend: Backend,
    module: torch.nn.Module,
    options: argparse.Namespace,
    results: dict[str, Rows],
    goals: list[Goal],
) -> None:
    cost, words = COSTS[options.device]
    times = {size: median_milliseconds(backend, samples_of(module, size)) for size in SIZES}
    text = ", ".join(f"{size}: {value:.2f}" for size, value in times.items())
    objective = Objective(max(20.0, LIVE_OBJECTIVE * times[1]))
    seconds = ROUND_SECONDS_QUICK if options.quick else ROUND_SECONDS
    rounds = ROUNDS_QUICK if options.quick else ROUNDS[options.device]
    inputs = samples_of(module, 1)
    rows = results[part] = []
    for load in LIVE_LOADS:
        rate = 1000 * load / times[1]
        found = compare(backend, objective, rate, seconds, rounds, cost, inputs)
        rows += found
        deadline = next(row for row in found if row["policy"] == BatchingPolicy.DEADLINE.value)
        of = f"{backend.name}, {round(rate)}/s: "
        ratio = deadline["of_immediate"]
        goals.append(Goal(f"{of}{words} of Immediate's", ratio, RATIO_GOAL, True))
        within = deadline["within_percent"]
        goals.append(Goal(f"{of}% within the objective", within, 99.0, False))
    title = f"{backend.name}, objective {objective.latency_milliseconds:.1f} ms, samples: ms {text}"
    _show(title, rows, LIVE_COLUMNS)


def measure_overhead(
    options: argparse.Namespace, results: dict[str, Rows], goals: list[Goal]
) -> None:
    rows = results["overhead"] = overhead(
        OVERHEAD_REQUESTS_QUICK if options.quick else OVERHEAD_REQUESTS
    )
    for row in rows:
        text = f"overhead, {row['policy']}, {row['at_a_time']} at a time, processor microseconds"
        goals.append(Goal(text, row["processor_us"], OVERHEAD_GOAL_MICROSECONDS, True))
    _show("The batcher's own time, microseconds for each request", rows, OVERHEAD_COLUMNS)


_PARTS: dict[str, Callable[[argparse.Namespace, dict[str, Rows], list[Goal]], None]] = {
    "virtual": measure_virtual,
    "bursts": measure_bursts,
    "noise": measure_noise,
    "eager": measure_eager,
    "onnx": measure_onnx,
    "overhead": measure_overhead,
}


if __name__ == "__main__":
    sys.exit(main())
