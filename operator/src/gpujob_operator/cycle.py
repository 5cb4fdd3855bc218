"""A scheduling cycle as a file (snapshot, time and plan), and its replay.

A dump answers "why did it decide that?" with the same function that decided.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from gpujob_api.codec import FieldError, decode, encode, format_time, parse_time
from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import GPUUsage, Snapshot

PlanFunction = Callable[[Snapshot, datetime], Plan]
Json = dict[str, Any]

FORMAT = "gpujob-cycle/1"
DUMPS_KEPT = 50


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle. `plan` is JSON, because it is compared and never executed."""

    snapshot: Snapshot
    now: datetime
    plan: Json


def snapshot_to_json(snapshot: Snapshot) -> Json:
    """Returns the snapshot as JSON. `usage` is a list, because JSON keys can only be strings."""
    data = encode(replace(snapshot, usage={}))
    data["usage"] = [
        {"jobUid": uid, "attempt": attempt, **encode(usage)}
        for (uid, attempt), usage in snapshot.usage.items()
    ]
    return data


def snapshot_from_json(data: object) -> Snapshot:
    """Reads the output of `snapshot_to_json`. Raises `FieldError`."""
    if not isinstance(data, Mapping):
        raise FieldError("snapshot", "must be an object")
    fields = cast("Mapping[str, Any]", data)
    bare = {name: value for name, value in fields.items() if name != "usage"}
    usage = {
        (str(entry["jobUid"]), int(entry["attempt"])): decode(GPUUsage, entry, f"usage[{n}]")
        for n, entry in enumerate(fields.get("usage") or ())
    }
    return replace(decode(Snapshot, bare, "snapshot"), usage=usage)


def plan_to_json(plan: Plan) -> Json:
    """Returns the items with their kind, in order."""
    items = [{"kind": type(item).__name__, **encode(item)} for item in plan.items]
    return {"items": items, "nextSeconds": plan.next_seconds}


def cycle_to_text(snapshot: Snapshot, now: datetime, plan: Plan | None) -> str:
    """Returns the file's text. `plan` is None if the decision itself failed."""
    data = {
        "format": FORMAT,
        "now": format_time(now),
        "snapshot": snapshot_to_json(snapshot),
        "plan": None if plan is None else plan_to_json(plan),
    }
    return json.dumps(data, indent=1, sort_keys=True)


def cycle_from_text(text: str) -> Cycle:
    """Reads a dump. Raises `FieldError` with the name of the field that does not fit."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FieldError("cycle", f"is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FieldError("format", f"must be {FORMAT}")
    try:
        now = parse_time(str(data["now"]))
    except (KeyError, ValueError):
        raise FieldError("now", "must be an RFC 3339 time") from None
    return Cycle(snapshot_from_json(data.get("snapshot")), now, data.get("plan") or {})


def replay(cycle: Cycle, plan: PlanFunction) -> list[str]:
    """Decides again. Returns the differences from the dumped plan as diff lines.

    Returns no lines if the plans are equal.
    """
    again = plan_to_json(plan(cycle.snapshot, cycle.now))
    if again == cycle.plan:
        return []
    texts = [json.dumps(one, indent=1, sort_keys=True).splitlines() for one in (cycle.plan, again)]
    then, now = texts
    return list(difflib.unified_diff(then, now, "decided then", "decided now", lineterm="", n=5))


def find_job(jobs: Iterable[GPUJob], name: str) -> GPUJob:
    """Returns the job NAMESPACE/NAME. The namespace may be omitted if the name is unique.

    Raises `FieldError`.
    """
    namespace, _, bare = name.rpartition("/")
    found = [
        job
        for job in jobs
        if job.metadata.name == bare and namespace in ("", job.metadata.namespace)
    ]
    if len(found) == 1:
        return found[0]
    where = ", ".join(f"{job.metadata.namespace}/{bare}" for job in found[:5])
    raise FieldError(
        "job", f"there are several jobs {bare}: {where}" if found else f"no job {name}"
    )


class CycleDumps:
    """A folder with the latest `kept` cycles. File names sort by time."""

    def __init__(self, directory: Path, kept: int = DUMPS_KEPT) -> None:
        self._directory = directory
        self._kept = kept
        self._count = 0

    def write(self, snapshot: Snapshot, now: datetime, plan: Plan | None) -> Path:
        """Writes one file atomically and removes the oldest. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._count += 1
        moment = now.strftime("%Y%m%dT%H%M%S.%f")
        path = self._directory / f"cycle-{moment}-{self._count:06d}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(cycle_to_text(snapshot, now, plan))
        partial.replace(path)
        for old in sorted(self._directory.glob("cycle-*.json"))[: -self._kept]:
            old.unlink(missing_ok=True)
        return path
