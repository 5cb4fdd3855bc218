"""JSON merge patches (RFC 7386) between two states of an object."""

from collections.abc import Mapping
from typing import Any, cast


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest merge patch from `before` to `after`; null removes a field."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            inner = merge_patch(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", value))
            if inner:
                patch[name] = inner
        elif name not in before or old != value:
            patch[name] = value
    return patch
