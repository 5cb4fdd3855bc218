"""Turns pages into HTML. Every text is escaped, and nothing in it can move a cursor or a line."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gpujob_api.visible import visible
from gpujob_dashboard.pages.contents import Page

# The files that pages refer to, and their types.
STATIC: Mapping[str, str] = {
    "style.css": "text/css",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


def _shown(value: object) -> object:
    """Returns the value as it is shown: hidden characters of a user's text are replaced."""
    if isinstance(value, Markup):
        return value
    return visible(value) if isinstance(value, str) else value


# A page has a time in each row, and most rows stay.
@lru_cache(maxsize=4096)
def _moment(at: datetime | None, *, age: bool = True) -> Markup:
    """Returns a time in UTC. With scripts, a browser adds how long ago it was."""
    if at is None:
        return Markup("never")
    exact = at.astimezone(UTC)
    text = f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    mark = Markup(" data-age") if age else Markup("")
    stamp = exact.isoformat(timespec="seconds")
    return Markup('<time datetime="{}"{}>{}</time>').format(stamp, mark, escape(text))


_ENVIRONMENT = Environment(
    loader=PackageLoader("gpujob_dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_ENVIRONMENT.filters["moment"] = _moment


def sections_of(page: Page) -> dict[str, str]:
    """Returns the HTML of each section by its id."""
    return {
        name: _ENVIRONMENT.get_template(section.template).render(section.values)
        for name, section in page.sections.items()
    }


def document(template: str, **values: Any) -> str:
    """Returns a whole document, such as that of a page or of the form to sign in."""
    return _ENVIRONMENT.get_template(template).render(values)


def static_file(name: str) -> bytes:
    return (files("gpujob_dashboard") / "static" / name).read_bytes()
