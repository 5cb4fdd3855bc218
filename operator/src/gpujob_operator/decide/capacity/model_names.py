"""The short names of GPU models that people use, such as H100 for an NVIDIA H100 80GB HBM3."""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from gpujob_operator.decide.model.configuration import Configuration

_WORD = re.compile(r"[a-z0-9]+")
# The names of some jobs and of the price table, times the models of a cluster.
_KEPT_MAX = 4096


@lru_cache(maxsize=_KEPT_MAX)
def means(name: str, model: str) -> bool:
    """Returns whether people may mean the model by this name.

    All words of the name occur in this order, possibly with others between them. Case does not
    count. A10 does not mean an A100.
    """
    part, rest = words(name), iter(words(model))
    return bool(part) and all(word in rest for word in part)


def words(name: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(name.lower()))


def accepted_models(accepted: Collection[str], present: Collection[str]) -> list[str]:
    """Returns the present models that these names mean, in order, or all if there is no name.

    A full name means that model alone.
    """
    if not accepted:
        return sorted(present)
    found: set[str] = set()
    for name in accepted:
        found.update((name,) if name in present else [m for m in present if means(name, m)])
    return sorted(found)


def price_names_without_model(configuration: Configuration, present: Collection[str]) -> list[str]:
    """Returns the names of the price tables that mean none of the present models, in order."""
    tables: Iterable[Mapping[str, float]] = (
        configuration.price_per_gpu_hour,
        configuration.spot_price_per_gpu_hour,
    )
    names = {name for table in tables for name in table}
    return sorted(name for name in names if not accepted_models((name,), present))
