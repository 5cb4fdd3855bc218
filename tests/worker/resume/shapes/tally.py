"""Counts what became of many scripts: in all, by the parts they are made of, and by reasons."""

import os
import platform
import re
from collections import Counter
from typing import Any

import torch

from tests.worker.resume.shapes.course import Course, Verdict

_REASONS_MAX = 12
_NUMBER = re.compile(r"\d+")


class Tally:
    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {}
        self.parts: dict[str, Counter[str]] = {}
        self.failed_seeds: list[int] = []
        self.other_lines = self.stops = self.kills = self.resumed = 0
        self.seconds = 0.0

    @property
    def count(self) -> int:
        return self.verdicts.total()

    @property
    def failures(self) -> int:
        return len(self.failed_seeds)

    def add(self, course: Course) -> None:
        verdict = course.verdict.value
        self.verdicts[verdict] += 1
        if course.reason:
            kind = _NUMBER.sub("N", course.reason)[:140]
            self.reasons.setdefault(verdict, Counter())[kind] += 1
        for part in features(course):
            self.parts.setdefault(part, Counter())[verdict] += 1
        if course.verdict.is_failure:
            self.failed_seeds.append(course.shape.seed)
        self.other_lines += course.other_lines > 0
        self.stops += sum(stop > 0 for stop in course.stops)
        self.kills += course.kills
        self.resumed += course.resumed
        self.seconds += course.seconds

    def line(self) -> str:
        shares = ", ".join(f"{name} {count}" for name, count in self.verdicts.most_common())
        return f"{self.count} scripts: {shares}"

    def text(self) -> str:
        names = [verdict.value for verdict in Verdict]
        lines = [f"{'made of':36}" + "".join(f"{name:>14}" for name in names)]
        for part, counts in sorted(self.parts.items()):
            total = counts.total()
            shares = (f"{counts[name]:>7} {counts[name] / total:>5.0%} " for name in names)
            lines.append(f"{part:36}" + "".join(shares))
        for verdict, reasons in self.reasons.items():
            lines.append(f"{verdict}:")
            lines += [f"{count:>6}  {why}" for why, count in reasons.most_common(_REASONS_MAX)]
        lines.append(self.line())
        return "\n".join(lines)

    def numbers(self) -> dict[str, Any]:
        return {
            "machine": machine(),
            "scripts": self.count,
            "failures": self.failures,
            **{verdict.value: self.verdicts[verdict.value] for verdict in Verdict},
            "stops": self.stops,
            "kills": self.kills,
            "resumed_attempts": self.resumed,
            "scripts_with_other_lines": self.other_lines,
            "run_seconds": round(self.seconds, 1),
            "failed_seeds": self.failed_seeds[:200],
            "reasons": {name: dict(found.most_common()) for name, found in self.reasons.items()},
        }


def features(course: Course) -> list[str]:
    shape = course.shape
    return [f"{name}: {value}" for name, value in shape.labels.items()] + list(shape.parts)


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    system, python = platform.machine(), platform.python_version()
    return f"{cores} cores, {system}, Python {python}, torch {torch.__version__}, CPU only"
