"""bench.commands: what is counted, and the least of the rounds."""

import os
import sys
from collections.abc import Iterator, Sequence

import pytest

from bench import commands

BUSY = "import sys\nfor _ in range(3_000_000): pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


def test_the_processor_time_of_children_counts() -> None:
    used, wall = commands._run([sys.executable, "-c", PARENT], dict(os.environ))
    idle, _ = commands._run([sys.executable, "-c", "pass"], dict(os.environ))
    assert used > 1.3 * idle
    assert wall > 0


def test_the_least_of_all_rounds_is_compared_with_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    def times() -> Iterator[float]:
        yield from (0.5, *(1.0 for _ in commands.COMMANDS), 0.4)
        while True:
            yield 0.8

    moments = times()

    def run(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
        del command, environment
        found = next(moments)
        return found, found

    monkeypatch.setattr(commands, "_run", run)
    first, *others = commands._measure(2, {})
    assert (first["command"], first["processor_seconds"]) == ("kubectl get gpujobs", 0.4)
    assert {row["processor_seconds"] for row in others} == {0.8}
    assert {row["of_kubectl"] for row in others} == {2.0}
