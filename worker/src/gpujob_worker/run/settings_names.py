"""Finds names in GPUJOB_SETTINGS that no field has.

Reading ignores them, because a newer operator may have more fields. On a command line they are
mistakes.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, cast

from gpujob_api.codec import FieldError, parse_json
from gpujob_api.field_types import bare_type, bounded_fields
from gpujob_api.settings import ENV_SETTINGS, Settings

# Minimum similarity of two names, from 0 to 1, for one to be suggested in place of the other.
SIMILARITY_MIN = 0.6
NAMED_MAX = 8
_DEPTH_MAX = 4


def unknown_names(text: str) -> tuple[str, ...]:
    """Returns the paths of unknown names, such as `batchSize.perStep`, at most `NAMED_MAX`.

    Empty if the text cannot be read.
    """
    try:
        data = parse_json(text, ENV_SETTINGS) if text.strip() else {}
    except FieldError:
        return ()
    return tuple(islice(_unknown(Settings, data), NAMED_MAX))


def refuse_unknown_names(text: str) -> None:
    """Raises `FieldError` with the first unknown name and the known one that is most similar."""
    for path in unknown_names(text):
        nearest = nearest_name(path)
        known = ", ".join(bounded_fields(Settings))
        advice = f"; {nearest} is the nearest" if nearest is not None else f"; known are {known}"
        raise FieldError(f"{ENV_SETTINGS}.{path}", f"is no setting{advice}")


def nearest_name(path: str) -> str | None:
    """Returns the path of the known field that is most similar, or None if none is."""
    known = {_plain(name): name for name in _paths(Settings)}
    found = difflib.get_close_matches(_plain(path), known, n=1, cutoff=SIMILARITY_MIN)
    return known[found[0]] if found else None


def _plain(path: str) -> str:
    return "".join(filter(str.isalnum, path)).lower()


def _unknown(kind: Any, data: object) -> Iterator[str]:
    if not isinstance(data, dict):
        return
    inside = {name: bare_type(hint) for name, (_, hint) in bounded_fields(kind).items()}
    for name, value in cast("Mapping[str, object]", data).items():
        if name not in inside:
            yield from _named(name, value, _DEPTH_MAX)
        elif dataclasses.is_dataclass(inside[name]):
            yield from (f"{name}.{path}" for path in _unknown(inside[name], value))


def _named(path: str, value: object, depth: int) -> Iterator[str]:
    """Yields an unknown name with the names inside it, because users recognize their entry by
    those.
    """
    if not (isinstance(value, dict) and value and depth):
        yield path
        return
    for name, inner in cast("Mapping[str, object]", value).items():
        yield from _named(f"{path}.{name}", inner, depth - 1)


def _paths(kind: Any) -> Iterator[str]:
    for name, (_, hint) in bounded_fields(kind).items():
        yield name
        if dataclasses.is_dataclass(bare_type(hint)):
            yield from (f"{name}.{path}" for path in _paths(bare_type(hint)))
