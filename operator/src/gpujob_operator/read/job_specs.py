"""Reads a spec of a job that was read lately no second time, and holds what is equal in specs once.

Every event of a job brings its spec again, and the jobs of a sweep differ in an argument. A spec
that was read lately is not read again. Of others, equal texts and lists are the same objects.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import cast

from gpujob_api.decoding import shared_text
from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.manifest import read_spec

# Of the JSON of what is kept, also of jobs that are gone: about 3,000 specs. In memory a spec takes
# some four times its JSON, and twenty times at worst.
KEPT_CHARACTERS_MAX = 2 * 2**20
_DIGEST_BYTES = 16
_ONLY_TEXTS = frozenset((str,))


class JobSpecs:
    """The specs and parts that were read lately."""

    def __init__(self) -> None:
        # By digest: of whole specs, and of specs without their template.
        self._specs: dict[bytes, GPUJobSpec] = {}
        self._by_other_fields: dict[bytes, GPUJobSpec] = {}
        # Of templates, by the texts in them.
        self._parts: dict[tuple[object, ...], object] = {}
        self._characters = 0

    def read(self, data: object) -> GPUJobSpec:
        """The spec. Nobody may change what is in it. Raises `FieldError`."""
        try:
            text = json.dumps(data)
        except (RecursionError, TypeError, ValueError):
            # What no JSON holds, which has an error with its field.
            return read_spec(data)
        key = _digest(text)
        spec = self._specs.get(key)
        if spec is None:
            self._count(len(text))
            try:
                spec = self._with_equal_parts(data)
            except RecursionError:
                # Deeper than a template may be, which has an error with its field, too.
                return read_spec(data)
            self._specs[key] = spec
        return spec

    def _count(self, characters: int) -> None:
        """What is read now, also of a spec that has an error. Once it is too much, all from before
        is forgotten: what is read often is soon here again."""
        self._characters += characters
        if self._characters > KEPT_CHARACTERS_MAX:
            self._specs.clear()
            self._by_other_fields.clear()
            self._parts.clear()
            self._characters = characters

    def _with_equal_parts(self, data: object) -> GPUJobSpec:
        """The spec, which was not read lately; its fields are those of another one that differs
        only in its template."""
        fields = cast("Mapping[str, object]", data if isinstance(data, dict) else {})
        if "template" not in fields:
            return read_spec(data)
        template = self._shared(fields["template"])
        key = _digest(json.dumps({**fields, "template": None}))
        other = self._by_other_fields.get(key)
        if other is None:
            spec = self._by_other_fields[key] = read_spec({**fields, "template": template})
            return spec
        return replace(other, template=read_spec({"template": template}).template)

    def _shared(self, value: object) -> object:
        """An equal value, whose texts, and objects and lists of nothing but texts, are those of
        others. What is around them differs where one of them does."""
        kind = type(value)
        if kind is str:
            return shared_text(cast("str", value))
        if kind is dict:
            fields = cast("dict[str, object]", value)
            shared = {self._shared(name): self._shared(one) for name, one in fields.items()}
            if _ONLY_TEXTS.issuperset(map(type, shared.values())):
                return self._parts.setdefault((tuple(shared), tuple(shared.values())), shared)
            return shared
        if kind is list:
            entries = [self._shared(one) for one in cast("list[object]", value)]
            if _ONLY_TEXTS.issuperset(map(type, entries)):
                return self._parts.setdefault(tuple(entries), entries)
            return entries
        return value


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
