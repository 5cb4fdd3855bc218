"""Rows of figures as a table that people can read."""

from collections.abc import Mapping, Sequence
from typing import Any


def format_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Text aligned left, numbers right with thousands separators; None is a dash."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [
        max(len(column), *(len(line[index]) for line in cells)) if cells else len(column)
        for index, column in enumerate(columns)
    ]
    right = [_numeric([row.get(column) for row in rows]) for column in columns]
    lines = [_line(columns, widths, right), "  ".join("-" * width for width in widths)]
    lines += [_line(line, widths, right) for line in cells]
    return "\n".join(lines)


def format_markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """The same for a document, as it is put there."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    cells = ([_cell(row.get(column)) for column in columns] for row in rows)
    return "\n".join([*lines, *(f"| {' | '.join(line)} |" for line in cells)])


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(aligned).rstrip()


def _numeric(values: Sequence[Any]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in values)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
