"""A table of plain lines that fits a terminal: what matters least is left out, no line wraps."""

from collections.abc import Mapping, Sequence

_GAP = "   "
# The last column is cut; with less room than this it is left out.
LAST_CHARACTERS_MIN = 20


def table_lines(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str], least: Sequence[str], width: int
) -> list[str]:
    """The heading and a line for each row, without blanks at their ends. `columns`: in order; the
    last one may be cut. `least`: what is left out where there is no room, the first one first."""
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    *shown, last = columns
    for name in least:
        if _sum(shown, widths) <= width:
            break
        shown.remove(name)
    left = width - _sum(shown, widths) - len(_GAP)
    if left >= min(widths[last], LAST_CHARACTERS_MIN):
        shown.append(last)
    lines = [{name: name for name in columns}, *rows]
    texts = [_GAP.join(line[name].ljust(widths[name]) for name in shown) for line in lines]
    most = width if last in shown else max(map(len, texts))
    return [text[:most].rstrip() for text in texts]


def _sum(names: Sequence[str], widths: Mapping[str, int]) -> int:
    return sum(widths[name] for name in names) + len(_GAP) * max(len(names) - 1, 0)
