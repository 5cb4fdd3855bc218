"""Splits a locked requirements file by package. Pure."""

import re
from collections.abc import Callable

_NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*==", re.MULTILINE)
# torch's CUDA build and its own dependencies: 5 GB, which an image need not copy.
SHARED = re.compile(r"^(torch|triton|cuda-.*|nvidia-(?!ml-py).*)$")


def is_shared(name: str) -> bool:
    """Returns whether a package is shared with the machine instead of copied into the worker's
    image.
    """
    return SHARED.match(name) is not None


def select(text: str, wanted: Callable[[str], bool]) -> str:
    """Returns the requirements of wanted packages, with their hashes and without comments."""
    rows: list[str] = []
    taken = False
    for line in text.splitlines():
        if match := _NAME.match(line):
            taken = wanted(match.group(1).lower())
        if taken and line.strip() and not line.lstrip().startswith("#"):
            rows.append(line)
    return "".join(f"{row}\n" for row in rows)
