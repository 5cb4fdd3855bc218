"""The fields of an object that this version does not have, so that writing it loses none."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from gpujob_api.field_types import bare_type, bounded_fields


def unknown_fields(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of an object, and of objects in it, that the noun does not have, as of a newer
    version.

    Lists are not searched.
    """
    found: dict[str, Any] = {}
    nested = _nested(kind)
    for name, value in data.items():
        if name not in nested:
            found[name] = value
            continue
        inner = nested[name]
        if inner is not None and isinstance(value, Mapping):
            unknown = unknown_fields(inner, cast("Mapping[str, Any]", value))
            if unknown:
                found[name] = unknown
    return found


def unknown_paths(kind: type, data: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yields the paths of these fields: `spec.gpu.memmory`. Lists are not searched."""
    nested = _nested(kind)
    for name, value in data.items():
        if name not in nested:
            yield f"{path}.{name}"
            continue
        inner = nested[name]
        if inner is not None and isinstance(value, Mapping):
            yield from unknown_paths(inner, cast("Mapping[str, Any]", value), f"{path}.{name}")


def with_unknown_fields(
    kind: type, data: Mapping[str, Any], unknown: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the output of `encode` with the `unknown_fields` of the earlier state.

    An object that no longer exists takes its unknown fields with it.
    """
    joined, nested = dict(data), _nested(kind)
    for name, value in unknown.items():
        inner = nested.get(name)
        if inner is None:
            joined[name] = value
        elif name in data:
            joined[name] = with_unknown_fields(inner, data[name], value)
    return joined


@cache
def _nested(kind: type) -> dict[str, type | None]:
    """Returns, by JSON name, the type of a field that is an object with its own fields,
    else None.
    """
    return {name: _plain_object(hint) for name, (_, hint) in bounded_fields(kind).items()}


def _plain_object(hint: Any) -> type | None:
    bare = bare_type(hint)
    plain = dataclasses.is_dataclass(bare) and not hasattr(bare, "from_json")
    return cast("type", bare) if plain else None
