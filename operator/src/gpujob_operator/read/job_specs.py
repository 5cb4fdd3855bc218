"""Reads each spec of a job once, and holds what is equal in them once.

Every event of a job brings its spec again, and the jobs of a sweep differ in an argument. A spec
that was read lately is not read again. Of others, equal texts and lists are the same objects.
"""

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, cast

from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.manifest import read_spec
from gpujob_api.shared_texts import shared_text

SPECS_MAX = 20_000
PARTS_MAX = 20_000
_DIGEST_BYTES = 16


class JobSpecs:
    """The specs and parts that were read lately."""

    def __init__(self) -> None:
        # By digest.
        self._specs: dict[bytes, GPUJobSpec] = {}
        self._parts: dict[bytes, Any] = {}

    def read(self, data: object) -> GPUJobSpec:
        """The spec. Nobody may change what is in it. Raises `FieldError`."""
        try:
            key = _digest(data)
        except (RecursionError, TypeError, ValueError):
            # What no JSON holds, which has an error with its field.
            return read_spec(data)
        spec = self._specs.get(key)
        if spec is None:
            spec = read_spec(self._shared(data))
            if len(self._specs) >= SPECS_MAX or len(self._parts) >= PARTS_MAX:
                # What was read lately is soon here again.
                self._specs.clear()
                self._parts.clear()
            self._specs[key] = spec
        return spec

    def _shared(self, value: object) -> object:
        """An equal value."""
        if isinstance(value, str):
            return shared_text(value)
        if isinstance(value, dict):
            fields = cast("dict[str, object]", value)
            shared = {self._shared(name): self._shared(one) for name, one in fields.items()}
            return self._part(shared, shared.values())
        if isinstance(value, list):
            entries = [self._shared(one) for one in cast("list[object]", value)]
            return self._part(entries, entries)
        return value

    def _part(self, part: object, within: Iterable[object]) -> object:
        """One for all that are equal. Only the innermost are looked up: those around them differ
        where one of them does."""
        if any(isinstance(one, dict | list) for one in within):
            return part
        return self._parts.setdefault(_digest(part), part)


def _digest(value: object) -> bytes:
    """Equal for what is the same JSON."""
    return blake2b(json.dumps(value).encode(), digest_size=_DIGEST_BYTES).digest()
