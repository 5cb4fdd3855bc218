"""Counts what the parts of a process hold, down to the last text: a leak of one text a job shows.

Followed are the references of the operator's own objects. Where they lead out of the product, into
a test's world, the count ends: that remembers everything.
"""

import gc
from collections import Counter
from collections.abc import Iterable
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

# What there is once for each class and module, however long a process runs.
_CODE = (
    *(ModuleType, type, CodeType, BuiltinFunctionType, WrapperDescriptorType),
    *(MethodDescriptorType, GetSetDescriptorType, MemberDescriptorType),
)
_TESTS = "tests."


def held_objects(roots: Iterable[Any]) -> Counter[str]:
    """How many objects of each type the roots hold, themselves included. Dictionaries, lists and
    sets also count what is in them, as "in dict" and so on: a number or a flag is no object of its
    own.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        one = pending.pop()
        kind = type(one)
        # A class made in C may have a descriptor in the place of the module's name.
        if id(one) in seen or isinstance(one, _CODE) or str(kind.__module__).startswith(_TESTS):
            continue
        seen.add(id(one))
        found[f"{kind.__module__}.{kind.__qualname__}"] += 1
        if isinstance(one, dict | list | set):
            found[f"in {kind.__qualname__}"] += len(one)
        pending += _referents(one)
    return found


def _referents(one: Any) -> list[Any]:
    """A function holds its module's names, which are not held by whoever calls it."""
    if isinstance(one, FunctionType):
        return [*(one.__closure__ or ()), *(one.__defaults__ or ()), one.__kwdefaults__]
    return gc.get_referents(one)
