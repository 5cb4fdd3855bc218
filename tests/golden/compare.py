"""`python -m tests.golden.compare DIR [--without-texts]`: whether plans are still what they were.

Plans every recorded cycle again, with and without a cache, and says of each cycle that differs the
first difference. By default plans must be equal value for value. With `--without-texts` messages,
summaries and free reasons may differ: wording that was changed on purpose can be told from a
decision that changed.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from gpujob_operator.cycle import plan_to_json
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner, plan
from tests.golden.cycles import SUFFIX, GoldenCycle, Json, read_scene

PlanFunction = Callable[[Snapshot, datetime], Plan]
TEXTS = ("message", "summary", "explain", "problem", "healthMessage")


def differences(path: Path, *, with_texts: bool = True) -> Iterator[str]:
    """The cycles of a scene whose plans are not the recorded ones, with the first difference."""
    planners: dict[str, PlanFunction] = {"with a cache": Planner(), "without a cache": plan}
    for number, cycle in enumerate(read_scene(path)):
        for index, (name, planner) in enumerate(planners.items()):
            decided = plan_to_json(planner(cycle.snapshot, cycle.now))
            found = difference(cycle, index, decided, with_texts)
            if found:
                yield f"{path.name.removesuffix(SUFFIX)}, cycle {number}, {name}: {found}"


def difference(cycle: GoldenCycle, index: int, decided: Json, with_texts: bool) -> str:
    """Empty where the plan (0: with a cache, 1: without) is the recorded one."""
    before, after = _without_specs(cycle.items), _without_specs(decided["items"])
    if not with_texts:
        before, after = _without_texts(before), _without_texts(after)
    for one, other in zip(before, after, strict=False):
        if one != other:
            return f"{_title(one)}: {_first(one, other)}"
    if len(before) != len(after):
        more = max(before, after, key=len)[min(len(before), len(after))]
        return f"{len(before)} items, now {len(after)}, with or without {_title(more)}"
    seconds = cycle.next_seconds[index], decided["nextSeconds"]
    # Which jobs rest may change: a deadline that is kept as a moment differs in the last digits.
    one, other = (found if found is None else round(found, 6) for found in seconds)
    return "" if one == other else f"next in {seconds[0]} s, now in {seconds[1]} s"


def _title(item: Json) -> str:
    named = item.get("job") or item.get("pod") or item.get("profile") or item["queue"]
    return f"{item['kind']} {(named.get('metadata') or named).get('name', '')}"


def _first(one: Any, other: Any, path: str = "") -> str:
    """Where two values part, and both of them there."""
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key in sorted({*one, *other}) if one.get(key) != other.get(key))
        return _first(one.get(key), other.get(key), f"{path}.{key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        index = next(index for index in range(len(one)) if one[index] != other[index])
        return _first(one[index], other[index], f"{path}[{index}]")
    return f"{path.lstrip('.')} was {str(one)[:300]}, now {str(other)[:300]}"


def _without_specs(items: list[Json]) -> list[Json]:
    """The items without the specs of their jobs, which no plan changes. A new field of the API
    is in every job, and in no decision."""
    return [
        {**item, "job": {key: value for key, value in item["job"].items() if key != "spec"}}
        if "job" in item
        else item
        for item in items
    ]


def _without_texts(items: list[Json]) -> list[Json]:
    """The items without texts, and without statuses of which only a text is new."""
    return [bare for bare in map(_bare, items) if not _tells_texts_only(bare)]


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(one) for key, one in value.items() if not _is_text(key, one)}
    return [_bare(one) for one in value] if isinstance(value, list) else value


def _is_text(key: str, value: object) -> bool:
    """A reason of one word is part of the API; one of several words is for people."""
    return key in TEXTS or (key == "reason" and " " in str(value))


def _tells_texts_only(item: Json) -> bool:
    if item["kind"] != "WriteStatus" or item.get("events"):
        return False
    before, after = item["job"].get("status") or {}, item["status"]
    return all(before.get(k) == after.get(k) for k in {*before, *after} - {"observedAt"})


def main(arguments: list[str] | None = None) -> int:
    """1 where a plan differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.compare", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-texts", action="store_true")
    options = parser.parse_args(arguments)
    scenes = sorted(options.folder.glob(f"*{SUFFIX}"))
    found = 0
    for scene in scenes:
        for one in differences(scene, with_texts=not options.without_texts):
            found += 1
            print(one, flush=True)
    print(f"{len(scenes)} scenes, {found} plans differ")
    return 1 if found or not scenes else 0


if __name__ == "__main__":
    sys.exit(main())
