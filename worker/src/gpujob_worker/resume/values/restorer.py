"""Goes through a table of nodes and gives each node its object, an existing one if it fits.

The functions of the families make or fill an object. They call `Restorer.value` for each value
inside it.
"""

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.values.family import KIND, Encoded, Family, Node
from gpujob_worker.resume.values.made_objects import memories_of, stepped_by

_CALLS_A_NODE = 10


class Restorer:
    """Restores values that a `Reader` read into the variables of a run of the same script."""

    def __init__(
        self,
        family: Family,
        nodes: Sequence[Any],
        made: Sequence[Any],
        passes: Passes,
        moved: tuple[str, str] = ("", ""),
        adopts: Callable[[Any], None] = lambda made: None,
    ) -> None:
        """`made` are the modules and optimizers, with their states.

        `moved` are the folder in which the script ran, and the one in which it runs now.
        `adopts` is called with objects that are made here in the script's place.
        """
        self._family, self._nodes, self._moved = family, nodes, moved
        self.made, self.passes, self.adopts = made, passes, adopts
        self._done: dict[int, Any] = {}
        self._taken: set[int] = set()
        # Start addresses of memory that stands for a saved one, or belongs to a module or an
        # optimizer.
        self._memories = set[int]().union(*map(memories_of, made))
        self._stepped = set[int]().union(*map(stepped_by, made))
        # Nodes whose objects have their content.
        self._filled: set[int] = set()

    def value(self, encoded: Encoded, existing: Any, path: str) -> Any:
        """Returns the value to bind. If `existing` fits, it is returned itself with its content
        restored.

        Raises `MismatchError`.
        """
        if not isinstance(encoded, tuple):
            return self._in_folder(encoded) if type(encoded) is str else encoded
        index = int(encoded[1])
        if index not in self._done:
            self._restore(index, existing, path)
        return self._done[index]

    def values(self, items: Sequence[Any], before: Sequence[Any], path: str) -> list[Any]:
        """Returns the values of items. `before` are the existing ones, in the same order."""
        padded = [*before[: len(items)], *[None] * (len(items) - len(before))]
        return [
            self.value(entry, was, f"{path}[{at}]")
            for at, (entry, was) in enumerate(zip(items, padded, strict=True))
        ]

    def _in_folder(self, text: str) -> str:
        """Moves a path in the folder in which the script ran to the folder in which it runs."""
        before, now = self._moved
        if before != now and (text == before or text.startswith(before + "/")):
            return now + text.removeprefix(before)
        return text

    def _restore(self, index: int, existing: Any, path: str) -> None:
        node: Node = self._nodes[index]
        kind = node[KIND]
        restore = self._family.restores.get(kind)
        if restore is None:
            raise MismatchError(f"{path}: {kind} is not known")
        restore(self, index, node, existing, path)

    def bind(self, index: int, value: Any) -> None:
        """Makes the object that of the node. It stands for no other node.

        An object is bound before its content is restored, because that may reference it.
        """
        self._done[index] = value
        self._taken.add(id(value))

    def is_bound(self, index: int) -> bool:
        return index in self._done

    def bound(self, index: int) -> Any:
        """Returns the object of a node, or None."""
        return self._done.get(index)

    def node(self, index: int) -> Node:
        return self._nodes[index]

    def fits(self, existing: Any, kind: type) -> bool:
        """Returns whether the object has the type and stands for no other one yet."""
        return type(existing) is kind and id(existing) not in self._taken

    def is_taken(self, existing: Any) -> bool:
        """Returns whether the object stands for a node."""
        return id(existing) in self._taken

    def begins_to_fill(self, index: int) -> bool:
        """Returns True once for each node, because a function may fill an object that another one
        bound.
        """
        if index in self._filled:
            return False
        self._filled.add(index)
        return True

    def takes_memory(self, memory: torch.Tensor) -> torch.Tensor:
        """Returns the memory, which stands for no other one from now on."""
        self._memories.add(memory.data_ptr())
        return memory

    def is_memory_taken(self, memory: torch.Tensor) -> bool:
        """Returns whether the memory stands for a saved one, or belongs to a module or an
        optimizer.
        """
        return memory.data_ptr() in self._memories

    def is_stepped(self, tensor: torch.Tensor) -> bool:
        """Returns whether an optimizer steps the tensor, so that its gradient is kept elsewhere."""
        return id(tensor) in self._stepped


@contextlib.contextmanager
def deep_calls(nodes: Sequence[Any]) -> Generator[None]:
    """Raises the recursion limit. Nested values are restored in nested calls, and a linked list may
    have many.

    These are calls of Python functions, which take nothing from the C stack.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + _CALLS_A_NODE * len(nodes))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
