"""The seeds that broke no promise so far, in a file: a run of hours can be continued later.

Each line is JSON. The first names the code that was played; the file goes on with this code only.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.result import Result

# What a seed depends on.
CODE = ("api", "operator", "tests/simulation", "tests/harness")


def played_code(folders: Iterable[str] = CODE) -> str:
    """The same for two commits that differ elsewhere. "unknown" without git, and for folders with
    changes that are not committed."""
    found = _git("rev-parse", *(f"HEAD:{folder}" for folder in folders))
    changed = _git("status", "--porcelain", "--", *folders)
    return "-".join(one[:12] for one in found.split()) if found and not changed else "unknown"


def counts_of(result: Result) -> Counter[str]:
    """What a run adds up: whole numbers only, `seconds` of virtual time included."""
    return Counter(
        revisions=result.revisions,
        writes=result.writes,
        cycles=result.cycles,
        seconds=round(result.seconds),
    )


@dataclass(frozen=True, slots=True)
class Played:
    """What a seed added up to. `took_seconds` is the real time."""

    counts: Counter[str]
    took_seconds: float


class PlayedSeeds:
    """By seed, in `seeds`."""

    def __init__(self, path: Path, code: str) -> None:
        """Raises `ValueError` for a file of other code, or of code that nobody can name."""
        if code == "unknown":
            raise ValueError("the code has no name: commit it first, in a checkout with git")
        self._path = path
        self.seeds: dict[int, Played] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if not lines:
            path.write_text(json.dumps({"code": code}) + "\n", encoding="utf-8")
        elif json.loads(lines[0])["code"] != code:
            other = json.loads(lines[0])["code"]
            raise ValueError(f"{path} has seeds of other code: {other}, and this is {code}")
        for line in lines[1:]:
            row = json.loads(line)
            self.seeds[row["seed"]] = Played(Counter(row["counts"]), row["tookSeconds"])

    def note(self, seed: int, result: Result, took_seconds: float) -> None:
        """`took_seconds` is the time since the last seed was noted."""
        counts = counts_of(result)
        self.seeds[seed] = Played(counts, took_seconds)
        row = {"seed": seed, "tookSeconds": round(took_seconds, 3), "counts": counts}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""
