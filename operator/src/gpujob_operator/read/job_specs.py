"""Reads each recently read job spec only once, and stores equal parts of specs once.

Every event of a job contains its spec, and the jobs of a sweep differ in an argument. A spec that
was read recently is not read again. Equal texts and lists of other specs are the same objects.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import cast

from gpujob_api.decoding import shared_text
from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.manifest import read_spec
from gpujob_api.short_form import expanded

# Total JSON characters of what is kept, including jobs that are gone: about 3,000 specs. In memory
# a spec takes about four times its JSON, and twenty times at worst.
KEPT_CHARACTERS_MAX = 2 * 2**20
_DIGEST_BYTES = 16
_ONLY_TEXTS = frozenset((str,))


class JobSpecs:
    """The specs and parts that were read recently."""

    def __init__(self) -> None:
        # By digest: whole specs, and specs without their template.
        self._specs: dict[bytes, GPUJobSpec] = {}
        self._by_other_fields: dict[bytes, GPUJobSpec] = {}
        # Parts of templates, by the texts in them.
        self._parts: dict[tuple[object, ...], object] = {}
        self._characters = 0

    def read(self, data: object) -> GPUJobSpec:
        """Returns the spec, whose contents must not be changed. Raises `FieldError`."""
        try:
            text = json.dumps(data)
        except (RecursionError, TypeError, ValueError):
            # The value cannot be expressed in JSON, so `read_spec` raises an error with its field.
            return read_spec(data)
        key = _digest(text)
        spec = self._specs.get(key)
        if spec is None:
            self._count(len(text))
            try:
                spec = self._with_equal_parts(data)
            except RecursionError:
                # The value is deeper than a template may be, so `read_spec` raises an error with
                # its field.
                return read_spec(data)
            self._specs[key] = spec
        return spec

    def _count(self, characters: int) -> None:
        """Counts what is read now, including a spec with an error.

        Beyond the limit everything older is dropped. What is read often soon returns.
        """
        self._characters += characters
        if self._characters > KEPT_CHARACTERS_MAX:
            self._specs.clear()
            self._by_other_fields.clear()
            self._parts.clear()
            self._characters = characters

    def _with_equal_parts(self, data: object) -> GPUJobSpec:
        """Returns a spec that was not read recently.

        It shares its fields with another spec that differs only in its template.
        """
        fields = cast("Mapping[str, object]", expanded(data) if isinstance(data, dict) else {})
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
        """Returns an equal value that shares its parts with others.

        Texts are shared, and objects and lists that contain only texts. A container around them
        differs if one of its parts does.
        """
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
