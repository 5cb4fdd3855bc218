"""What a page is made of: sections, each with a template and its values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

ROWS_MAX = 50
QUERY_CHARACTERS_MAX = 253

ItemT = TypeVar("ItemT")
Query = Mapping[str, str]


class NoSuchPage(Exception):  # noqa: N818 - it is an answer
    """There is no such page, or the viewer may not see it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page that is replaced as a whole when it changes."""

    template: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page. The keys of `sections` are the ids of their elements."""

    title: str
    sections: Mapping[str, Section]
    # The entry of the navigation that the page belongs to.
    place: str = ""


@dataclass(frozen=True, slots=True)
class Cut(Generic[ItemT]):
    """Some rows of a longer list, and the links to those before and after them."""

    rows: Sequence[ItemT]
    total: int
    first: int
    before: str | None
    after: str | None


def cut(items: Sequence[ItemT], query: Query, path: str) -> Cut[ItemT]:
    """Returns the rows of the page that the query names. A page that does not exist is the last."""
    pages = max((len(items) + ROWS_MAX - 1) // ROWS_MAX, 1)
    asked = query.get("page", "1")
    number = min(max(int(asked), 1), pages) if asked.isascii() and asked.isdigit() else 1
    start = (number - 1) * ROWS_MAX
    return Cut(
        rows=items[start : start + ROWS_MAX],
        total=len(items),
        first=start + 1 if items else 0,
        before=link(path, query, page=str(number - 1)) if number > 1 else None,
        after=link(path, query, page=str(number + 1)) if number < pages else None,
    )


def link(path: str, query: Query, **changed: str) -> str:
    """Returns the address of the page with these parts of its query changed; "" removes one."""
    whole = {key: value for key, value in {**query, **changed}.items() if value}
    return f"{path}?{urlencode(whole)}" if whole else path


def text_of(query: Query, name: str) -> str:
    return query.get(name, "").strip()[:QUERY_CHARACTERS_MAX]
