"""The product's model of interference on Gavel's pairs (OSDI'20): K80, P100, V100.

    python -m bench.interference --data DIR [--seeds 100-109]

Fitted on the pairs of one half of the job types, reported on the pairs of the other half, of which
only single-job figures are used: iterations a second alone on the three GPU models, and the
workload's name. Splits: job types at random, and whole families of workloads (so that nothing of
the same name was ever seen). Pairs that do not fit into memory together are known from memory
alone: they are not predicted, never share, and take turns (1.0 of a GPU's work).
"""

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bench.gavel.pairing import (
    TURNS,
    best_pairing,
    random_throughput_per_gpu,
    rank_correlation,
    throughput_per_gpu,
)
from bench.gavel.pairs import PairTable, Profiles, family, observations, read_pairs
from bench.machine import print_result
from bench.sharing_model.interference import Calibration, calibrate, predicted_speeds
from bench.table import format_table

# The model's constants were chosen on the random splits of seeds 0 to 19.
SEEDS = "100-109"
COLUMNS = (
    "trace",
    "split",
    "policy",
    "speed_mean_absolute_error",
    "speed_rank_correlation",
    "gain_mean_absolute_error",
    "gain_rank_correlation",
    "throughput_per_gpu",
)


@dataclass(frozen=True, slots=True)
class Split:
    """Job types to fit on and job types to report on."""

    fitted: list[str]
    reported: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.interference", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the pair table")
    parser.add_argument("--seeds", default=SEEDS, help="first-last seed of the splits")
    options = parser.parse_args(arguments)
    first, last = map(int, options.seeds.split("-"))
    table = read_pairs(options.data)
    results: list[dict[str, Any]] = []
    for gpu in table.gpus:
        for kind in ("types", "families"):
            started = time.perf_counter()
            splits = [_split(table.types, kind, seed) for seed in range(first, last + 1)]
            runs = [_report(table, gpu, split) for split in splits]
            results += _rows(gpu, kind, options.seeds, runs)
            seconds = time.perf_counter() - started
            print(f"{gpu} {kind}: {len(splits)} splits in {seconds:.1f} s", file=sys.stderr)
    print(format_table(results, COLUMNS))
    print_result(results, bench="interference", pairs=_counts(table))
    return 0


def _split(types: Sequence[str], kind: str, seed: int) -> Split:
    """Half of the types; with `families`, whole families until half of the types are reached."""
    rng = random.Random(seed)
    groups = {name: [name] for name in types}
    if kind == "families":
        groups = {family(name): [n for n in types if family(n) == family(name)] for name in types}
    shuffled = rng.sample(sorted(groups), len(groups))
    fitted: list[str] = []
    for name in shuffled:
        if len(fitted) + len(groups[name]) <= (len(types) + 1) // 2:
            fitted += groups[name]
    return Split(sorted(fitted), sorted(set(types) - set(fitted)))


def _report(table: PairTable, gpu: str, split: Split) -> dict[str, dict[str, float]]:
    profiles = Profiles(table, gpu, split.fitted)
    seen = observations(table, gpu, profiles, split.fitted)
    calibration = calibrate(seen)
    constant = mean(observation.relative_speed for observation in seen)
    predicted = _predict(table, gpu, profiles, calibration, split.reported)
    flat = dict.fromkeys(predicted, constant)
    # Two jobs of each type, so that a type may also meet itself.
    jobs = sorted(split.reported * 2)

    def achieved(a: str, b: str) -> float:
        gain = table.gain(gpu, a, b)
        return TURNS if gain is None else gain

    def expected(a: str, b: str) -> float:
        return max(predicted[a, b] + predicted[b, a], TURNS) if (a, b) in predicted else TURNS

    def when_expected(a: str, b: str) -> float:
        return achieved(a, b) if expected(a, b) > TURNS else TURNS

    def ideal(a: str, b: str) -> float:
        return max(achieved(a, b), TURNS)

    ours = throughput_per_gpu(best_pairing(jobs, expected), when_expected)
    best = throughput_per_gpu(best_pairing(jobs, ideal), ideal)
    return {
        "gpujob": {**_errors(table, gpu, predicted), "throughput_per_gpu": ours},
        "mean of the fitted half": _errors(table, gpu, flat),
        "random pairing": {"throughput_per_gpu": random_throughput_per_gpu(jobs, achieved)},
        "best pairing": {"throughput_per_gpu": best},
    }


def _predict(
    table: PairTable, gpu: str, profiles: Profiles, calibration: Calibration, types: Sequence[str]
) -> dict[tuple[str, str], float]:
    """The first one's speed beside the second, for all pairs that fit."""
    found: dict[tuple[str, str], float] = {}
    for index, first in enumerate(types):
        for second in types[index:]:
            if table.gain(gpu, first, second) is None:
                continue
            uses = profiles.use(first), profiles.use(second)
            found[first, second], found[second, first] = predicted_speeds(uses, calibration)
    return found


def _errors(
    table: PairTable, gpu: str, predicted: Mapping[tuple[str, str], float]
) -> dict[str, float]:
    pairs = sorted(predicted)
    speeds = [table.speeds[gpu][pair] or 0.0 for pair in pairs]
    guesses = [predicted[pair] for pair in pairs]
    unordered = [pair for pair in pairs if pair[0] <= pair[1]]
    gains = [table.gain(gpu, *pair) or 0.0 for pair in unordered]
    summed = [predicted[a, b] + predicted[b, a] for a, b in unordered]
    return {
        "speed_mean_absolute_error": _distance(guesses, speeds),
        "speed_rank_correlation": rank_correlation(guesses, speeds),
        "gain_mean_absolute_error": _distance(summed, gains),
        "gain_rank_correlation": rank_correlation(summed, gains),
    }


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    return mean(abs(a - b) for a, b in zip(first, second, strict=True))


def _rows(
    gpu: str, kind: str, seeds: str, runs: Sequence[Mapping[str, Mapping[str, float]]]
) -> list[dict[str, Any]]:
    """Means over the splits."""
    return [
        {
            "trace": gpu,
            "policy": policy,
            "source": "ours" if policy == "gpujob" else "reproduced",
            "split": kind,
            "seeds": seeds,
            **{name: round(mean(run[policy][name] for run in runs), 4) for name in figures},
        }
        for policy, figures in runs[0].items()
    ]


def _counts(table: PairTable) -> dict[str, dict[str, int]]:
    """Ordered pairs by GPU model, and how many do not fit."""
    return {
        gpu: {"pairs": len(speeds), "do_not_fit": sum(speed is None for speed in speeds.values())}
        for gpu, speeds in table.speeds.items()
    }


if __name__ == "__main__":
    sys.exit(main())
