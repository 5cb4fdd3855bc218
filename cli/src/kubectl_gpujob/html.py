"""One self-contained HTML page: rows and tables, no script, nothing loaded from elsewhere."""

from collections.abc import Sequence
from html import escape

from gpujob_api.visible import visible

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0 }
tr { border-bottom: 1px solid color-mix(in srgb, currentColor 15%, transparent) }
th { font-weight: 600; white-space: nowrap }
td { overflow-wrap: anywhere }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Returns the page. `parts` are HTML of `rows` and `table`."""
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width">'
    body = f"<h1>{_text(title)}</h1>\n" + "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}{view}</head>\n<body>{body}</body></html>'


def rows(labelled: Sequence[tuple[str, str]]) -> str:
    """Returns a table of labels and texts. A label that repeats is shown once."""
    lines: list[str] = []
    before = ""
    for label, value in labelled:
        shown = "" if label == before else _text(label)
        lines.append(f'<tr><th scope="row">{shown}</th><td>{_text(value)}</td></tr>')
        before = label
    return f"<table>{''.join(lines)}</table>"


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(one)}</th>' for one in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(text: str) -> str:
    """Returns a user's text so that it is nothing but text."""
    return escape(visible(text))
