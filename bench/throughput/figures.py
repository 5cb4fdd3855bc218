"""Percentiles, Prometheus text and the rows that are printed. Pure: no process, no clock."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

# A server-side apply is a verb of its own there.
WRITING = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
# Below this share of a write a job, a kind is left out of the table for people.
SHOWN_WRITES = 0.05

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], float]
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_series(text: str, names: Iterable[str]) -> Series:
    """The samples of Prometheus text whose name is one of `names`. Other lines are skipped."""
    wanted, found = tuple(names), Series()
    for line in text.splitlines():
        # Most of an API server's 30,000 lines are not asked for.
        if not line.startswith(wanted):
            continue
        match = _SAMPLE.match(line)
        if match is not None and match.group(1) in wanted:
            labels = tuple(sorted(_LABEL.findall(match.group(2) or "")))
            found[match.group(1), labels] = float(match.group(3))
    return found


def difference(after: Series, before: Series) -> Series:
    """What was counted in between. Counters of a process that took another's place start again,
    so `total` has to add those of the first one before.
    """
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def total(one: Series, other: Series) -> Series:
    """What two processes counted, one after the other."""
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in one | other}


def writes_by_kind(requests: Series) -> Counter[str]:
    """Writing requests of `apiserver_request_total` by resource and subresource. A dry run is a
    kind of its own, because nothing is stored.
    """
    found = Counter[str]()
    for (_, labels), count in requests.items():
        values = dict(labels)
        if values.get("verb") not in WRITING or not count:
            continue
        kind = "/".join(filter(None, (values.get("resource"), values.get("subresource"))))
        found[f"{kind} (dry run)" if values.get("dry_run") else kind] += round(count)
    return found


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` of all are not above; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def histogram_percentile(series: Series, name: str, percent: float) -> float | None:
    """The upper bound of the bucket in which the percentile lies; None without observations."""
    buckets = sorted(
        (float(dict(labels)["le"]), count)
        for (found, labels), count in series.items()
        if found == f"{name}_bucket"
    )
    if not buckets or not buckets[-1][1]:
        return None
    wanted = buckets[-1][1] * percent / 100
    return next(bound for bound, count in buckets if count >= wanted)


@dataclass(frozen=True, slots=True)
class Process:
    """What one process took while jobs ran."""

    cpu_seconds: float
    peak_mib: float


@dataclass(slots=True)
class Takeover:
    """Seconds from the kill of the operator until another one leads with a complete cache and so
    may act, and until its first cycle has ended. None: not seen before the run ended.
    """

    takeover_seconds: float | None = None
    first_cycle_seconds: float | None = None


@dataclass(slots=True)
class JobTimes:
    """Moments of one job, in seconds of one clock."""

    submitted: float
    bound: float | None = None
    succeeded: float | None = None
    # All of its pods were there.
    created: float | None = None
    # The API server had stored the job and said so.
    answered: float | None = None
    # A watch had shown the job.
    seen: float | None = None


@dataclass(slots=True)
class Beside:
    """Of jobs that came one by one in another namespace until the others were bound: how many came
    and were bound; how long it took until the API server had answered the request, until a watch
    had shown the job, until their pods were there, and until those were bound. None: none was.
    """

    beside_jobs: int
    beside_bound: int
    beside_answered_seconds_median: float | None
    beside_answered_seconds_p99: float | None
    beside_seen_seconds_median: float | None
    beside_seen_seconds_p99: float | None
    beside_created_seconds_median: float | None
    beside_created_seconds_p99: float | None
    beside_bound_seconds_median: float | None
    beside_bound_seconds_p99: float | None


def beside_of(jobs: Iterable[JobTimes]) -> Beside:
    times = list(jobs)

    def waits(name: str) -> list[float]:
        moments = ((one.submitted, getattr(one, name)) for one in times)
        return [at - submitted for submitted, at in moments if at is not None]

    until = [waits(name) for name in ("answered", "seen", "created", "bound")]
    figures = [percentile(of, percent) for of in until for percent in (50, 99)]
    return Beside(len(times), len(until[-1]), *figures)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One kind of jobs, run to the end or to the time limit."""

    kind: str
    jobs: Mapping[str, JobTimes]
    processes: Mapping[str, Process]
    writes: Mapping[str, int]
    operator: Series = field(default_factory=Series)
    problem: str = ""
    # Only where the operator was killed.
    takeover: Takeover | None = None
    # Only where jobs came beside these.
    beside: Beside | None = None

    @property
    def complete(self) -> bool:
        return not self.problem and all(one.succeeded is not None for one in self.jobs.values())

    def row(self, played: frozenset[str]) -> dict[str, Any]:
        """All figures. The CPU of `played` processes, which stand for nodes and users, is not in
        the sum."""
        count = len(self.jobs)
        stack = {name: one for name, one in self.processes.items() if name not in played}
        return {
            "kind": self.kind,
            "jobs": count,
            **self._moments("bound", [one.bound for one in self.jobs.values()]),
            **self._moments("succeeded", [one.succeeded for one in self.jobs.values()]),
            "stack_cpu_milliseconds": _a_job(sum(p.cpu_seconds for p in stack.values()), count),
            "cpu_milliseconds": {
                name: _a_job(one.cpu_seconds, count) for name, one in self.processes.items()
            },
            "peak_mib": {name: one.peak_mib for name, one in self.processes.items()},
            "writes": sum(self.writes.values()) / count,
            "writes_by_kind": {kind: n / count for kind, n in sorted(self.writes.items())},
            **self._cycles(),
            **(asdict(self.takeover) if self.takeover else {}),
            **(asdict(self.beside) if self.beside else {}),
            "complete": self.complete,
            "problem": self.problem,
        }

    def _moments(self, name: str, moments: Sequence[float | None]) -> dict[str, Any]:
        start = min(one.submitted for one in self.jobs.values())
        reached = [at for at in moments if at is not None]
        waits = [
            at - one.submitted
            for one, at in zip(self.jobs.values(), moments, strict=True)
            if at is not None
        ]
        return {
            name: len(reached),
            f"{name}_per_second": len(reached) / (max(reached) - start) if reached else None,
            f"{name}_seconds_median": percentile(waits, 50),
            f"{name}_seconds_p99": percentile(waits, 99),
        }

    def _cycles(self) -> dict[str, Any]:
        cycles = self.operator.get(("gpujob_cycle_seconds_count", ()), 0.0)
        if not cycles:
            return {}
        seconds = self.operator[("gpujob_cycle_seconds_sum", ())]
        p99 = histogram_percentile(self.operator, "gpujob_cycle_seconds", 99)
        written = sum(
            count
            for (name, labels), count in self.operator.items()
            if name == "gpujob_writes_total" and dict(labels).get("result") == "done"
        )
        return {
            "cycles": int(cycles),
            "cycle_milliseconds_mean": 1000 * seconds / cycles,
            "cycle_milliseconds_p99_below": None if p99 is None else 1000 * p99,
            "placements_per_second": self._placements_per_second(),
            "operator_writes_per_second": written / self._seconds(),
        }

    def _placements_per_second(self) -> float | None:
        """Until the last job was bound: nothing is placed after it. None: not counted."""
        placed = self.operator.get(("gpujob_placements_total", ()))
        ends = [one.bound for one in self.jobs.values() if one.bound is not None]
        if placed is None or not ends:
            return None
        return placed / (max(ends) - min(one.submitted for one in self.jobs.values()))

    def _seconds(self) -> float:
        ends = [at for one in self.jobs.values() for at in (one.bound, one.succeeded) if at]
        start = min(one.submitted for one in self.jobs.values())
        return max(ends, default=start + 1.0) - start


def _a_job(seconds: float, jobs: int) -> float:
    return 1000 * seconds / jobs


FIGURES = (
    "jobs",
    "bound_per_second",
    "succeeded_per_second",
    "bound_seconds_median",
    "bound_seconds_p99",
    "succeeded_seconds_median",
    "succeeded_seconds_p99",
    "stack_cpu_milliseconds",
    "writes",
    "cycles",
    "cycle_milliseconds_mean",
    "cycle_milliseconds_p99_below",
    "placements_per_second",
    "operator_writes_per_second",
)
# In the table only where an operator was killed, or jobs came beside.
RARE_FIGURES = tuple(one.name for kind in (Takeover, Beside) for one in fields(kind))


def ratio_columns(kinds: Sequence[str]) -> list[str]:
    """One for each kind but the first, which is divided by it; named where there are several."""
    first, *others = kinds
    return ["ratio"] if len(others) == 1 else [f"{first} / {other}" for other in others]


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The figures of the first kind divided by those of each other one, by the names of both."""
    first, *others = (str(row["kind"]) for row in rows)
    figures = figure_rows(rows)
    return {
        f"{first} / {other}": {row["figure"]: row[column] for row in figures if column in row}
        for other, column in zip(others, ratio_columns([first, *others]), strict=True)
    }


def figure_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a figure, one column a kind of jobs, and the first kind divided by the others."""
    rare = [name for name in RARE_FIGURES if any(name in row for row in rows)]
    names = (*FIGURES, *rare)
    return [_compared(name, [row.get(name) for row in rows], rows) for name in names]


def process_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a process: CPU a job, and peak memory of the first kind of jobs that has it."""
    names = dict.fromkeys(name for row in rows for name in row["cpu_milliseconds"])
    return [
        _compared(name, [row["cpu_milliseconds"].get(name) for row in rows], rows)
        | {f"{row['kind']}_mib": row["peak_mib"].get(name) for row in rows}
        for name in names
    ]


def write_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a kind of object: writes a job, most first."""
    names = dict.fromkeys(kind for row in rows for kind in row["writes_by_kind"])
    found = [
        _compared(name, [row["writes_by_kind"].get(name, 0.0) for row in rows], rows)
        for name in names
    ]
    kinds = [str(row["kind"]) for row in rows]
    shown = [row for row in found if max(row[kind] for kind in kinds) >= SHOWN_WRITES]
    return sorted(shown, key=lambda row: -max(row[kind] for kind in kinds))


def _compared(
    name: str, values: Sequence[float | None], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"figure": name}
    kinds = [str(one["kind"]) for one in rows]
    row |= dict(zip(kinds, values, strict=True))
    first, *others = values
    for column, other in zip(ratio_columns(kinds), others, strict=True):
        if first is not None and other:
            row[column] = first / other
    return row
