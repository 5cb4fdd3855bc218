"""Classes by name, `module:qualified name`, as a checkpoint holds them.

Only imported classes are found. Nothing is imported and nothing is called for a name, so that a
manipulated checkpoint cannot run code.
"""

import inspect
import sys
from typing import Any

from gpujob_worker.checkpoint.errors import MismatchError


def name_of(kind: type) -> str | None:
    """Returns the name by which `find_class` finds the class, or None for a class made in a
    function.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    return name if _find(name) is kind else None


def find_class(name: str, base: type) -> Any:
    """Returns the class, which must be a subclass of `base`. Raises `MismatchError`."""
    found = _find(name)
    if not isinstance(found, type) or not issubclass(found, base):
        what = "is not imported" if found is None else f"is no {base.__name__}"
        raise MismatchError(
            f"a value is of the class {name}, which {what}: define it under this name before the"
            " checkpoint is loaded, or use another checkpoint directory"
        )
    return found


def _find(name: str) -> Any:
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        # No code of the module or the class runs for it, such as a module's __getattr__.
        found = inspect.getattr_static(found, part, None)
    return found
