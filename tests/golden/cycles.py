"""Recorded scheduling cycles: scenes of snapshots in sequence, each with the plan made of it.

The JSON is that of a cycle dump (`gpujob_operator.cycle`), so it knows no module's name. What is
equal in several cycles is stored once and read as one object: what is remembered from one cycle to
the next rests on that, as it does in the operator.
"""

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpujob_api.codec import format_time, parse_time
from gpujob_api.field_types import json_fields
from gpujob_operator.cycle import plan_to_json, snapshot_from_json, snapshot_to_json
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner, plan

Json = dict[str, Any]
Seen = tuple[Snapshot, datetime]
SUFFIX = ".scene.xz"


@dataclass(frozen=True, slots=True)
class GoldenCycle:
    """`items` as `plan_to_json` has them; `next_seconds` with a cache and without, where a deadline
    kept as a moment differs in the last digits."""

    snapshot: Snapshot
    now: datetime
    items: list[Json]
    next_seconds: list[float | None]


@dataclass(slots=True)
class _Objects:
    """JSON values, each stored once, and what was read of them by field of the snapshot."""

    values: list[Any] = field(default_factory=list[Any])
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    _read: dict[tuple[str, int], Any] = field(default_factory=dict[tuple[str, int], Any])

    def number(self, value: object) -> int:
        number = self._numbers.setdefault(json.dumps(value, sort_keys=True), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def snapshot(self, numbers: Mapping[str, int | list[int]]) -> Snapshot:
        values: dict[str, Any] = {}
        for name, found in numbers.items():
            python, _ = json_fields(Snapshot)[name]
            if isinstance(found, int):
                values[python] = self._one(name, python, found)
            else:
                ones = [self._one(name, python, number) for number in found]
                values[python] = dict(ones) if name == "usage" else tuple(ones)
        return Snapshot(**values)

    def _one(self, name: str, python: str, number: int) -> Any:
        key, value = (name, number), self.values[number]
        if key not in self._read:
            is_listed = isinstance(getattr(Snapshot(), python), tuple | dict)
            read: Any = snapshot_from_json({name: [value] if is_listed else value})
            read = getattr(read, python)
            self._read[key] = (
                next(iter(read.items() if name == "usage" else read)) if is_listed else read
            )
        return self._read[key]


def write_scene(path: Path, cycles: Iterable[Seen]) -> None:
    """Plans every cycle, with and without a cache, and writes the scene.

    Raises `ValueError` where the cache changes what is written.
    """
    objects, planner, written = _Objects(), Planner(), list[Json]()
    for seen, now in cycles:
        # Of jobs that are being written a cache says nothing again.
        snapshot = replace(seen, writing=())
        numbers = {
            name: [objects.number(one) for one in value]
            if isinstance(value, list)
            else objects.number(value)
            for name, value in snapshot_to_json(snapshot).items()
        }
        read = objects.snapshot(numbers)
        both = [plan_to_json(planner(read, now)), plan_to_json(plan(read, now))]
        if both[0]["items"] != both[1]["items"]:
            raise ValueError(f"{path.name}, cycle {len(written)}: the cache changes the plan")
        items = [
            {k: {"object": objects.number(v)} if isinstance(v, dict) else v for k, v in one.items()}
            for one in both[0]["items"]
        ]
        seconds = [one["nextSeconds"] for one in both]
        at = format_time(now)
        written.append({"now": at, "snapshot": numbers, "items": items, "nextSeconds": seconds})
    text = json.dumps({"objects": objects.values, "cycles": written}, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode()))


def read_scene(path: Path) -> Iterator[GoldenCycle]:
    """The cycles of a scene in sequence."""
    data = json.loads(lzma.decompress(path.read_bytes()))
    objects = _Objects(data["objects"])
    for one in data["cycles"]:
        items = [
            {k: objects.values[v["object"]] if isinstance(v, dict) else v for k, v in item.items()}
            for item in one["items"]
        ]
        snapshot = objects.snapshot(one["snapshot"])
        yield GoldenCycle(snapshot, parse_time(one["now"]), items, one["nextSeconds"])
