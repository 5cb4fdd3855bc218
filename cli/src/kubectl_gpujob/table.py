"""A table of plain lines that fits a terminal: unimportant columns are left out, and no
line wraps.
"""

from collections.abc import Mapping, Sequence

_GAP = "   "
# A last column that is wider than this is cut. It is left out if there is less room than this.
LAST_CHARACTERS_MIN = 20


def table_lines(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str], least: Sequence[str], width: int
) -> list[str]:
    """Returns the heading and a line for each row, without trailing blanks.

    `columns` are in order, and the last one may be cut. `least` are the columns to leave out
    without room, the first one first; it may have others.
    """
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    *shown, last = columns
    if widths[last] < LAST_CHARACTERS_MIN:
        # It is as short as the others, and never cut.
        shown.append(last)
    for name in least:
        if _sum(shown, widths) <= width:
            break
        if name in shown:
            shown.remove(name)
    left = width - _sum(shown, widths) - len(_GAP)
    is_cut = last not in shown and widths[last] >= LAST_CHARACTERS_MIN <= left
    if is_cut:
        shown.append(last)
    lines = [{name: name for name in columns}, *rows]
    texts = [_GAP.join(line[name].ljust(widths[name]) for name in shown) for line in lines]
    most = width if is_cut else max(map(len, texts))
    return [text[:most].rstrip() for text in texts]


def _sum(names: Sequence[str], widths: Mapping[str, int]) -> int:
    return sum(widths[name] for name in names) + len(_GAP) * max(len(names) - 1, 0)
