"""What machine a figure was taken on, and the JSON object that ends a benchmark's output."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Row = Mapping[str, Any]


def describe_machine() -> dict[str, Any]:
    """Processor, number of cores this process may use, Python, numpy."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": _numpy(),
    }


def yardstick_milliseconds() -> float:
    """What 100,000 steps of a loop over a small dictionary take now: how fast plain Python is at
    this moment, on a machine whose speed changes."""
    start = time.perf_counter()
    seen: dict[int, int] = {}
    for number in range(100_000):
        seen[number & 1023] = seen.get(number & 511, 0) + 1
    return 1000 * (time.perf_counter() - start)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _numpy() -> str:
    try:
        return version("numpy")
    except PackageNotFoundError:
        return "not installed"


def print_result(results: Sequence[Row], **more: Any) -> None:
    """Prints the last line: one JSON object with `results`, the machine and `more`."""
    print(json.dumps({"results": list(results), "machine": describe_machine(), **more}))
