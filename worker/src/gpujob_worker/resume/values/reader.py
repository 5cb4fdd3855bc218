"""Goes through the values of a script's variables and numbers them: one node for each object, and
one for each memory of tensors and arrays.

The functions of the families describe a value. They call `Reader.encode` for each value inside it.
"""

import collections
import types
from typing import Any

import numpy as np
import torch

from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.script_source import is_of_script
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.values.family import KIND, LEFT, Encoded, Family, Node, Read
from gpujob_worker.resume.values.kinds import PLAIN
from gpujob_worker.resume.values.made_objects import MadeObjects

NODES_MAX = 300_000

Names = dict[str, Any]


class Reader:
    """Reads values into a table of nodes. An object that is reached twice is one node."""

    def __init__(
        self,
        family: Family,
        read_separate: Read,
        made: MadeObjects,
        baseline: Baseline,
        *,
        passes: Passes | None = None,
        first: bool = False,
    ) -> None:
        """`read_separate` describes the objects of `made`, and `family` all others.

        With `first`, only large values are read, into the baseline.
        """
        self._family, self._read_separate = family, read_separate
        self.made, self.baseline, self.passes, self.first = made, baseline, passes, first
        self.nodes: list[Any] = []
        # Loops of halted generators, which have to begin elsewhere too: file and line.
        self.lines: list[tuple[str, int]] = []
        self.memories = ReadMemories()
        # Whether an object of a library has the described value, and a module or a loader has that
        # object. A function that describes a value may change it for the values inside.
        self.of_library = False
        self._known: dict[int, int] = {}
        # By content of containers that are not saved: the container, its path and its function.
        self._omitted: dict[int, tuple[Any, str, Read]] = {}
        self._alive: list[Any] = []
        self._waiting: collections.deque[tuple[int, Any, str, bool]] = collections.deque()

    def names(self, scope: str, variables: Names) -> Names:
        """Returns the variables' values, encoded.

        Raises `UnsavableError` for a value that cannot be read, and then drops its nodes.
        """
        found: Names = {}
        for name, value in variables.items():
            if self._stays(scope, name, value):
                continue
            known = 0 if self.first else len(self.nodes)
            try:
                found[name] = self.encode(value, name)
                self.read_waiting()
            except BaseException:
                self.forget(known)
                raise
            if self.first:
                # A later read may reach a value of two variables by either of them.
                self.forget(known)
        return found

    def _stays(self, scope: str, name: str, value: Any) -> bool:
        """Returns whether the variable has the value from before the first step, and that has no
        state.
        """
        stateless = isinstance(value, types.ModuleType) or (
            isinstance(value, (types.FunctionType, type)) and not is_of_script(value)
        )
        if self.first:
            self.baseline.names[scope, name] = id(value)
            return stateless
        same = self.baseline.names.get((scope, name)) == id(value)
        return stateless and (same or (scope, name) not in self.baseline.names)

    def encode(self, value: Any, path: str) -> Encoded:
        """Returns a plain value itself, or the reference to the node of another one.

        `read_waiting` reads the node later, so nested values need no nested calls.
        """
        if type(value) in PLAIN or isinstance(value, np.generic):
            return value
        if id(value) in self._omitted:
            self._read_omitted(*self._omitted[id(value)])
        index = self._known.get(id(value))
        if index is not None and not self.of_library and _is_left(self.nodes[index]):
            # A variable of the script has it too.
            self.nodes[index] = self._describe(value, path)
        if index is None:
            index = self._known[id(value)] = len(self.nodes)
            if index >= NODES_MAX:
                raise UnsavableError(f"its variables hold more than {NODES_MAX} values")
            self.new_node(value)
            self._waiting.append((index, value, path, self.of_library))
        return ("r", index)

    def encode_named(self, values: Names, path: str) -> Names:
        """Returns attributes of the value that has the path, encoded."""
        return {name: self.encode(each, f"{path}.{name}") for name, each in values.items()}

    def encode_kept(self, owner: Any, value: Any, path: str) -> Encoded:
        """Returns a value of a module, an optimizer or a loader. The owner decides whether it is
        the script's.
        """
        before = self.of_library
        self.of_library = before or not is_of_script(type(owner))
        try:
            return self.encode(value, path)
        finally:
            self.of_library = before

    def new_node(self, value: Any) -> int:
        """Returns the index of a node that the caller has to set. The value is kept alive, so that
        no other one gets its identity or its memory.
        """
        self._alive.append(value)
        self.nodes.append(None)
        return len(self.nodes) - 1

    def read_waiting(self) -> None:
        """Reads all values that were encoded and have no node yet."""
        try:
            while self._waiting:
                index, value, path, self.of_library = self._waiting.popleft()
                self.nodes[index] = self._describe(value, path)
        finally:
            self.of_library = False

    def _describe(self, value: Any, path: str) -> Node:
        if self.made.is_separate(value):
            return self._read_separate(self, value, path)
        read = self._family.reads.get(type(value))
        if read is None:
            bases = self._family.reads_of_bases
            read = next(each for kind, each in bases if isinstance(value, kind))
        return read(self, value, path)

    def forget(self, known: int) -> None:
        """Drops all nodes except the first `known` ones."""
        self._waiting.clear()
        del self.nodes[known:]
        self.memories.forget(known)
        self._known = {key: index for key, index in self._known.items() if index < known}
        self._omitted = {key: of for key, of in self._omitted.items() if id(of[0]) in self._known}

    def may_omit(self, container: Any, inner: list[int], path: str, read: Read) -> bool:
        """Returns whether the content of a container need not be saved, because no value inside it
        has a node. `inner` are the identities of these.

        As soon as one of them is encoded, `read` reads the container, so that a resume can find
        the value inside.
        """
        if not self._known.keys().isdisjoint(inner):
            return False
        self._omitted.update(dict.fromkeys(inner, (container, path, read)))
        return True

    def _read_omitted(self, container: Any, path: str, read: Read) -> None:
        self._omitted = {key: of for key, of in self._omitted.items() if of[0] is not container}
        self.nodes[self._known[id(container)]] = read(self, container, path)

    def check_made_before(self, path: str, what: str) -> None:
        """Checks that a resume finds the value there, because the script makes it before
        it trains. Raises `UnsavableError`.
        """
        if self.first:
            self.baseline.made.add((path, what))
        elif (path, what) not in self.baseline.made:
            raise UnsavableError(f"{path} is {what}, which the script made while it trained")


class ReadMemories:
    """The memories that were read, with the indices of their nodes.

    Their bytes are tensors or arrays.
    """

    def __init__(self) -> None:
        self._indices: dict[int, int] = {}
        # Where memories of the CPU begin and end, with their indices.
        self._spans: list[tuple[int, int, int]] = []

    def index_of(self, key: int, content: Any) -> int | None:
        """Returns the index of a memory's node, or None. An empty memory is shared by none."""
        return self._indices.get(key) if len(content) else None

    def add(self, key: int, content: Any, index: int) -> None:
        self._indices[key] = index
        on_device = isinstance(content, torch.Tensor) and content.device.type != "cpu"
        if len(content) and not on_device:
            start = content.ctypes.data if isinstance(content, np.ndarray) else content.data_ptr()
            self._spans.append((start, start + len(content), index))

    def forget(self, known: int) -> None:
        """Drops the memories of all nodes except the first `known` ones."""
        self._indices = {key: index for key, index in self._indices.items() if index < known}
        self._spans = [span for span in self._spans if span[2] < known]

    def overlaps(self) -> list[tuple[int, int, int]]:
        """Returns overlapping memories, such as that of `torch.from_numpy(array[3:])`.

        Each entry has both, and the bytes from the beginning of the first to that of the second.
        """
        found: list[tuple[int, int, int]] = []
        widest = (0, 0, 0)
        for span in sorted(self._spans):
            if span[0] < widest[1]:
                found.append((widest[2], span[2], span[0] - widest[0]))
            if span[1] > widest[1]:
                widest = span
        return found


def _is_left(node: Any) -> bool:
    return node is not None and node.get(KIND) == LEFT
