"""What the worker refused in several runs, for a table: what nearly all refuse is said once."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The columns: of a row's refusals by item, and of what is printed of them.
REFUSED, SKIPPED = "refused", "skipped"
REASON_CHARACTERS_MAX = 72
# Of the runs in which settings were tried: from so many on, a refusal is in the legend.
SHARED_FRACTION = 0.75
LEGEND_HEAD = "also skipped wherever settings were tried (but in what is named):"
AS_BELOW = "as below"
_NUMBER = re.compile(r"(\d[\d.,]*)")
# What follows is the measurement's or the remedy's detail.
_DETAIL = re.compile(r"; | \(")

Refusal = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Common:
    """A refusal that nearly all runs have; the names of those that have it not."""

    item: str
    reason: str
    absent: tuple[str, ...]


def fill_skipped(rows: Sequence[dict[str, Any]], label: str) -> list[str]:
    """Writes into each row what it alone refused, and returns the lines of a legend for the rest.

    `label` is the column with the rows' names. A run that was refused as a whole has one refusal,
    which stays in its row, and is not asked for the others.
    """
    tried = [row for row in rows if len(_refused(row)) > 1]
    common = _common(tried, label)
    for row in rows:
        own = [
            (item, _short(reason))
            for item, reason in _refused(row).items()
            if len(_refused(row)) == 1 or _key(item, reason) not in common
        ]
        row[SKIPPED] = "; ".join(_grouped(own)) or (AS_BELOW if _refused(row) else "-")
    return _legend(common.values())


def _common(rows: Sequence[dict[str, Any]], label: str) -> dict[Refusal, _Common]:
    reasons: dict[Refusal, dict[str, str]] = {}
    for row in rows:
        for item, reason in _refused(row).items():
            reasons.setdefault(_key(item, reason), {})[row[label]] = _short(reason)
    needed = max(2.0, SHARED_FRACTION * len(rows))
    names = [row[label] for row in rows]
    return {
        key: _Common(key[0], _joined(said.values()), tuple(n for n in names if n not in said))
        for key, said in reasons.items()
        if len(said) >= needed
    }


def _legend(common: Iterable[_Common]) -> list[str]:
    items: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in common:
        items.setdefault((one.reason, one.absent), []).append(one.item)
    lines = [
        f"- {', '.join(named)}: {reason}" + (f" (but: {'; '.join(absent)})" if absent else "")
        for (reason, absent), named in items.items()
    ]
    return [LEGEND_HEAD, *lines] if lines else []


def _refused(row: Mapping[str, Any]) -> Mapping[str, str]:
    return row.get(REFUSED) or {}


def _key(item: str, reason: str) -> Refusal:
    """Alike but for the figures."""
    return item, _NUMBER.sub("N", _short(reason))


def _short(reason: str) -> str:
    first = _DETAIL.split(reason, maxsplit=1)[0].replace("|", "/")
    return textwrap.shorten(first, REASON_CHARACTERS_MAX, placeholder=" ...")


def _joined(reasons: Iterable[str]) -> str:
    """One text for reasons that differ in figures; what differs is N."""
    parts = (_NUMBER.split(reason) for reason in reasons)
    columns = zip(*parts, strict=True)
    return "".join(column[0] if len(set(column)) == 1 else "N" for column in columns)


def _grouped(refusals: Iterable[Refusal]) -> list[str]:
    """Items that are refused for one reason together."""
    items: dict[str, list[str]] = {}
    for item, reason in refusals:
        items.setdefault(reason, []).append(item)
    return [f"{', '.join(named)}: {reason}" for reason, named in items.items()]
