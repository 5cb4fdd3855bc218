"""What was measured so far, in a file that is whole at any moment: a killed run loses one part."""

import datetime
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# Figures of another device, or of other versions, are no figures of this one.
ALIKE = ("device", "driver", "versions", "size")


def stem_of(device: str, *more: str) -> str:
    """The name of a device's files."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join((device, *more)).lower()).strip("-")


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


@dataclass(slots=True)
class Kept:
    """One device's parts. `about` says on what they were measured."""

    path: Path
    about: Row
    parts: dict[str, Row] = field(default_factory=dict[str, Row])
    # The part that had begun and not ended when the last run ended.
    running: str | None = None

    @classmethod
    def open(cls, path: Path, about: Mapping[str, Any]) -> "Kept":
        """Continues the file, if it is of the same device and versions. Raises `ValueError` with
        the path for a file that is none of ours.
        """
        kept = cls(path, dict(about))
        if not path.exists():
            return kept
        try:
            found: Row = json.loads(path.read_text())
            parts: dict[str, Row] = dict(found["parts"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no result of this benchmark ({error}): move it away"
            ) from None
        if all(found.get(name) == about.get(name) for name in ALIKE):
            kept.parts, kept.running = parts, found.get("running")
        return kept

    def begin(self, part: str) -> None:
        self.running = part
        self.write()

    def finish(self, part: str, result: Mapping[str, Any], seconds: float) -> None:
        self.parts[part] = {"date": today(), "seconds": round(seconds, 1), **result}
        self.running = None
        self.write()

    def result(self) -> Row:
        return {**self.about, "parts": self.parts, "running": self.running}

    def write(self) -> None:
        write_whole(self.path, json.dumps(self.result(), indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader finds the old or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def merged(results: Sequence[Mapping[str, Any]]) -> Row:
    """Several results of one device as one: of each part the newest run that found something.

    Raises `ValueError` if the results are not of one device.
    """
    if not results:
        raise ValueError("nothing to merge")
    for one in results[1:]:
        for name in ALIKE:
            if one.get(name) != results[0].get(name):
                raise ValueError(f"{name} differs: {results[0].get(name)} and {one.get(name)}")
    parts: dict[str, Row] = {}
    for one in results:
        for name, part in one["parts"].items():
            if name not in parts or _worth(part) >= _worth(parts[name]):
                parts[name] = part
    return {**results[-1], "parts": parts, "running": None}


def _worth(part: Mapping[str, Any]) -> tuple[bool, str]:
    """A part that ended early is worth less than one that did not; then the date counts."""
    return not part.get("failure"), str(part.get("date", ""))
