"""Reads the pair table and tells what is known of each job alone."""

import csv
import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.sharing_model.interference import Observation, Use

FILE = "colocation_pairs.csv.gz"


@dataclass(slots=True)
class PairTable:
    """Iterations a second alone by (GPU model, job type), and relative speeds in pairs.

    `speeds[gpu][first, second]` is the first one's speed beside the second, relative to alone; None
    where the two do not fit into the GPU's memory together.
    """

    alone: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    speeds: dict[str, dict[tuple[str, str], float | None]] = field(
        default_factory=dict[str, dict[tuple[str, str], float | None]]
    )

    @property
    def gpus(self) -> list[str]:
        return sorted(self.alone)

    @property
    def types(self) -> list[str]:
        """Job types that ran alone on every GPU model, in alphabetical order."""
        return sorted(set[str].intersection(*(set(rates) for rates in self.alone.values())))

    def gain(self, gpu: str, first: str, second: str) -> float | None:
        """Sum of both relative speeds; None where they do not fit."""
        one, other = self.speeds[gpu].get((first, second)), self.speeds[gpu].get((second, first))
        return None if one is None or other is None else one + other


def read_pairs(folder: Path) -> PairTable:
    """Pairs of two jobs of one GPU each. Raises ValueError when there are none."""
    path = folder / FILE
    if not path.exists():
        path = path.with_suffix("")
    opener = gzip.open if path.suffix == ".gz" else open
    table = PairTable()
    with opener(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if float(row["gpus1"]) == 1 == float(row["gpus2"]):
                _add(table, row)
    if not table.alone:
        raise ValueError(f"{path}: no pairs of two jobs of one GPU")
    return table


def _add(table: PairTable, row: Mapping[str, str]) -> None:
    gpu, first, second = row["gpu"], row["job1"], row["job2"]
    alone = table.alone.setdefault(gpu, {})
    for name, rate in ((first, row["iso1_it_s"]), (second, row["iso2_it_s"])):
        if float(rate) > 0:
            alone[name] = float(rate)
    # 0 iterations a second is how the table says "does not fit".
    together = [float(row[name] or 0) for name in ("colo1_it_s", "colo2_it_s")]
    fits = min(together) > 0 and first in alone and second in alone
    speeds = table.speeds.setdefault(gpu, {})
    speeds[first, second] = together[0] / alone[first] if fits else None
    speeds[second, first] = together[1] / alone[second] if fits else None


def family(job_type: str) -> str:
    """The workload's name without its batch size."""
    return job_type.split(" (")[0]


class Profiles:
    """Each job type's `Use`, from what it did alone on all GPU models.

    Traits: how long an iteration takes here, and how many times faster it is on each better GPU
    model than on the next slower one (a job that hardly gains waits for its processor or its data).
    All as logarithms, in standard deviations of the half that is fitted on.
    """

    def __init__(self, table: PairTable, gpu: str, fitted: Sequence[str]) -> None:
        self._raw = {name: _figures(table, gpu, name) for name in table.types}
        columns = list(zip(*(self._raw[name] for name in fitted), strict=True))
        self._means = [sum(column) / len(column) for column in columns]
        self._spreads = [
            math.sqrt(sum((value - mean) ** 2 for value in column) / len(column)) or 1.0
            for column, mean in zip(columns, self._means, strict=True)
        ]

    def use(self, job_type: str) -> Use:
        figures = zip(self._raw[job_type], self._means, self._spreads, strict=True)
        traits = tuple((value - mean) / spread for value, mean, spread in figures)
        return Use(traits=traits, kind=family(job_type))


def _figures(table: PairTable, gpu: str, name: str) -> tuple[float, ...]:
    # From the slowest GPU model to the fastest, by the median job.
    ranked = sorted(table.gpus, key=lambda model: _median_rate(table, model))
    rates = [math.log(table.alone[model][name]) for model in ranked]
    steps = (fast - slow for slow, fast in pairwise(rates))
    return -math.log(table.alone[gpu][name]), *steps


def _median_rate(table: PairTable, gpu: str) -> float:
    rates = sorted(table.alone[gpu][name] for name in table.types)
    return rates[len(rates) // 2]


def observations(
    table: PairTable, gpu: str, profiles: Profiles, types: Sequence[str]
) -> list[Observation]:
    """What was measured of all pairs of `types` that fit."""
    return [
        Observation(profiles.use(first), profiles.use(second), speed)
        for first in types
        for second in types
        if (speed := table.speeds[gpu].get((first, second))) is not None
    ]
