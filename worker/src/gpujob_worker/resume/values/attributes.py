"""The attributes of an object, in its dictionary and in its slots."""

from typing import Any

from gpujob_worker.resume.values.family import KIND, LEFT, Encoded, Node
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer


def read_attributes(reader: Reader, value: Any, path: str) -> Node:
    return reader.encode_named(attributes(value), path)


def restore_attributes(restorer: Restorer, target: Any, saved: Node, path: str) -> None:
    before = attributes(target)
    values = {
        name: restorer.value(entry, before.get(name), f"{path}.{name}")
        for name, entry in saved.items()
        if not is_made_later(restorer, entry, before.get(name))
    }
    for name in before:
        if name not in saved:
            object.__delattr__(target, name)
    set_attributes(target, before, values)


def is_made_later(restorer: Restorer, encoded: Encoded, existing: Any) -> bool:
    """Returns whether only its library can read it, which makes it when needed."""
    by_library = isinstance(encoded, tuple) and restorer.node(int(encoded[1]))[KIND] == LEFT
    return existing is None and by_library


def attributes(value: Any) -> dict[str, Any]:
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for name in _slots(type(value)):
        try:
            # A class may have a `__getattr__` that returns more than its attributes.
            found[name] = object.__getattribute__(value, name)
        except AttributeError:
            continue
    return found


def set_attributes(target: Any, before: dict[str, Any], values: dict[str, Any]) -> None:
    own = vars(target) if hasattr(target, "__dict__") else {}
    slots = set(_slots(type(target)))
    for name, value in values.items():
        if name in before and value is before[name]:
            continue
        if name in slots or not hasattr(target, "__dict__"):
            object.__setattr__(target, name, value)
        else:
            own[name] = value


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots: Any = vars(each).get("__slots__", ())
        names: list[str] = [slots] if isinstance(slots, str) else list(slots)
        owner = each.__name__.lstrip("_")
        own = [name for name in names if name not in ("__dict__", "__weakref__")]
        found += [f"_{owner}{name}" if name.startswith("__") else name for name in own]
    return found
