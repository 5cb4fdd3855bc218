"""The published rows that lie beside the traces: `published_sim_results.csv`."""

import csv
from dataclasses import dataclass
from pathlib import Path

from bench.muri.trace import Outcome

FILE = "published_sim_results.csv"
_METRICS = ("JCT", "Makespan", "99JCT")
# What the figure calls them, and what the papers do.
_NAMES = {
    "SRTF": "SRTF",
    "SRSF": "SRSF",
    "Tiresias_L": "Tiresias",
    "antman": "AntMan",
    "themis": "Themis",
    "Muri_L": "Muri-L",
    "Muri_S": "Muri-S",
}


@dataclass(frozen=True, slots=True)
class PublishedRow:
    trace: str
    policy: str
    outcome: Outcome


def read_published(folder: Path, trace: str) -> list[PublishedRow]:
    """The trace's rows, none where the file is missing or does not know the trace."""
    path = folder / FILE
    if not path.exists():
        return []
    figures: dict[str, dict[str, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row.get(trace):
                figures.setdefault(row["policy"], {})[row["metric_s"]] = float(row[trace])
    return [
        PublishedRow(
            trace,
            _NAMES.get(policy, policy),
            Outcome(known["JCT"], known["Makespan"], known["99JCT"]),
        )
        for policy, known in figures.items()
        if all(metric in known for metric in _METRICS)
    ]
