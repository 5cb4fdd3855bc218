"""Makes text from other sources safe to show: nothing in it may move a cursor or reorder a line."""

_REPLACEMENT = "\ufffd"
# C0 and C1 controls except tab and line feed, line and paragraph separators, and characters that
# change the direction of text.
_HIDDEN = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
_TABLE = dict.fromkeys(_HIDDEN, _REPLACEMENT)
_LINE_TABLE = _TABLE | {ord("\n"): "\\n", ord("\t"): "\\t"}


def visible(text: str) -> str:
    """Returns the text with each control character replaced by one character. Lines and
    tabs stay.
    """
    return text if text.isprintable() else text.translate(_TABLE)


def visible_line(text: str) -> str:
    """Returns `visible` as one line. Line feeds and tabs are escaped as in a string literal."""
    return text if text.isprintable() else text.translate(_LINE_TABLE)
