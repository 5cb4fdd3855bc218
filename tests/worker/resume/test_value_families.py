"""Families of values: each is in the table, none hides another, and stored kinds stay readable."""

import importlib
import pkgutil
from collections import Counter

from gpujob_worker.resume import values
from gpujob_worker.resume.values.family import Family
from gpujob_worker.resume.values.table import EVERY_FAMILY

# Checkpoints have nodes of these kinds.
STORED = """
    Counter, OrderedDict, Size, array, bit generator, buffer, builtin iterator, builtin method,
    bytearray, cell, class, closed stream, constant, count, defaultdict, deque, dict, exception,
    frozenset, function, generator, generator that is over, global, inner module, iterator,
    later loader, later optimizer, left, legacy generator, list, loader, made, made constant,
    member, method, module, numpy generator, object, of optimizer, part, partial, python module,
    random, same, set, stream, tensor, torch generator, tuple, unchanged, weak
"""


def families() -> list[Family]:
    names = [each.name for each in pkgutil.iter_modules(values.__path__)]
    modules = [importlib.import_module(f"{values.__name__}.{name}") for name in names]
    return [module.FAMILY for module in modules if hasattr(module, "FAMILY")]


def test_the_table_has_every_family() -> None:
    assert EVERY_FAMILY.restores.keys() == {kind for each in families() for kind in each.restores}
    assert EVERY_FAMILY.reads.keys() == {kind for each in families() for kind in each.reads}
    assert set(EVERY_FAMILY.reads_of_bases) == {
        base for each in families() for base in each.reads_of_bases
    }


def test_no_kind_and_no_type_is_in_two_families() -> None:
    counts = Counter[object](kind for each in families() for kind in (*each.restores, *each.reads))
    assert [kind for kind, count in counts.items() if count > 1] == []


def test_nodes_of_earlier_checkpoints_can_be_restored() -> None:
    assert {" ".join(kind.split()) for kind in STORED.split(",")} <= EVERY_FAMILY.restores.keys()
