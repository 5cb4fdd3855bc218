"""Finds the variables of a running function or script that may still be read. A checkpoint must
have these.

Classical backward liveness over the bytecode. In doubt, a name is live.
"""

import dis
import functools
import inspect
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, zip_longest
from types import CodeType
from typing import Any, NamedTuple

_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_STORE_THEN_LOAD = "STORE_FAST_LOAD_FAST"
_STORES = {"STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_GLOBAL", "STORE_NAME"}
_LOCAL_STORES = {"STORE_FAST", "STORE_FAST_STORE_FAST", _STORE_THEN_LOAD}
# From Python 3.12 on, a comprehension is part of the code around it, with its own names.
_SET_ASIDE = "LOAD_FAST_AND_CLEAR"
_BEFORE_LOOP = {"BUILD_LIST", "BUILD_MAP", "BUILD_SET", "CACHE", "EXTENDED_ARG", "SWAP"}
_AFTER_LOOP = {"CACHE", "END_FOR", "EXTENDED_ARG", "POP_ITER", "POP_TOP", "SWAP"}
# The names of these are attributes or modules, not variables.
_NO_VARIABLES = {
    *("DELETE_ATTR", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR"),
    *("IMPORT_FROM", "IMPORT_NAME"),
}
_NOTHING_FOLLOWS = {
    *("RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE"),
    *("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"),
}
# These reach variables without naming them: those of a frame, and those of its module.
_READ_ANY_OF_FRAME = {"dir", "eval", "exec", "locals", "vars"}
_READ_ANY_OF_MODULE = {"__main__", "eval", "exec", "globals"}
# With an argument, these are about another object.
_ASK_OBJECT = {"dir", "vars"}
_FRAMES = {"_getframe", "currentframe"}
# Prefix of a script's comprehension variables, which are not the script's own.
_HIDDEN = "hidden "
_NONE: frozenset[str] = frozenset()


class _Step(NamedTuple):
    """One instruction: the names it reads before it writes, the names it writes, and the next
    instructions.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    following: list[int]
    handlers: list[int]


@functools.lru_cache(maxsize=256)
def live_names(code: CodeType, offset: int) -> frozenset[str]:
    """Returns the names that may be read from `offset` (a frame's `f_lasti`) on before they are
    written.

    A module's functions and classes may be called at any time, so the names that they load are
    always live. If `reads_any_name(code)` is True, names that the code does not mention may be read
    too.
    """
    if reads_any_name(code):
        return _every_name(code)
    instructions = list(dis.get_instructions(code))
    offsets = [instruction.offset for instruction in instructions]
    # During a call, the offset may be in the call's cache entries.
    at = max(bisect_right(offsets, offset) - 1, 0)
    try:
        live = _live_before(_steps(code, instructions))[at]
    except (KeyError, TypeError):
        # A jump to a position without an instruction means that this bytecode is not understood.
        return _every_name(code)
    return frozenset(name.removeprefix(_HIDDEN) for name in live) | _read_elsewhere(code)


def reads_any_name(code: CodeType) -> bool:
    """Returns whether the code may read its variables without naming them (`eval`, `locals()`,
    ...).
    """
    if _is_function(code):
        return _mentions(code, _READ_ANY_OF_FRAME)
    inner = [each for each in _with_inner(code) if each is not code]
    return _mentions(code, _READ_ANY_OF_FRAME | _READ_ANY_OF_MODULE) or any(
        _mentions(each, _READ_ANY_OF_MODULE) for each in inner
    )


def _mentions(code: CodeType, reflection: set[str]) -> bool:
    instructions = [each for each in dis.get_instructions(code) if each.opname != "PUSH_NULL"]
    for instruction, following in zip_longest(instructions, instructions[1:]):
        name = instruction.opname
        if name.startswith("<"):
            return True  # an instruction that `dis` does not know
        if instruction.opcode not in dis.hasname or name == "STORE_NAME":
            continue
        if name in _NO_VARIABLES and name != "IMPORT_NAME":
            if instruction.argval in _FRAMES:
                return True
        elif instruction.argval in reflection and not _has_argument(instruction, following):
            return True
    return False


def _has_argument(instruction: dis.Instruction, following: dis.Instruction | None) -> bool:
    loads = following is not None and following.opname.startswith("LOAD_")
    return loads and instruction.argval in _ASK_OBJECT


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _shared_names(code: CodeType) -> frozenset[str]:
    return frozenset((*code.co_cellvars, *code.co_freevars))


def _every_name(code: CodeType) -> frozenset[str]:
    if _is_function(code):
        return _shared_names(code).union(code.co_varnames)
    return frozenset().union(
        *((*each.co_names, *each.co_varnames) for each in _with_inner(code)), _shared_names(code)
    )


def _read_elsewhere(code: CodeType) -> frozenset[str]:
    """Returns the names that inner functions and classes may read. Their calls are not in this
    bytecode.
    """
    shared = _shared_names(code)
    if _is_function(code):
        return shared
    inner = [each for each in _with_inner(code) if each is not code]
    return shared.union(
        name
        for each in inner
        for instruction in dis.get_instructions(each)
        if instruction.opcode in dis.hasname
        for name in _effect(instruction, False)[0]
    )


def _steps(code: CodeType, instructions: list[dis.Instruction]) -> list[_Step]:
    index = {instruction.offset: at for at, instruction in enumerate(instructions)}
    bytecode: Any = dis.Bytecode(code)
    handlers = [
        [
            index[entry.target]
            for entry in bytecode.exception_entries
            if entry.start <= at < entry.end
        ]
        for at in index
    ]
    set_aside = _set_aside(instructions, index, handlers)
    steps: list[_Step] = []
    for at, instruction in enumerate(instructions):
        following = [index[instruction.argval]] if instruction.opcode in _JUMPS else []
        if instruction.opname not in _NOTHING_FOLLOWS and at + 1 < len(instructions):
            following.append(at + 1)
        effect = _effect(instruction, _is_function(code), set_aside.get(at, _NONE))
        steps.append(_Step(*effect, following, handlers[at]))
    return steps


def _effect(
    instruction: dis.Instruction, function: bool, unchanged: frozenset[str] = _NONE
) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names that an instruction reads before it writes, and those it writes."""
    local = instruction.opcode in dis.haslocal
    if not local and (function or instruction.opcode not in dis.hasname):
        return _NONE, _NONE
    if instruction.opname in _NO_VARIABLES:
        return _NONE, _NONE
    prefix = _HIDDEN if local and not function else ""
    names = [prefix + name for name in _names(instruction)]
    changed = frozenset(names) - {prefix + name for name in unchanged}
    if instruction.opname == _STORE_THEN_LOAD:
        written = changed & {names[0]}
        return frozenset({names[1]}) - written, written
    if instruction.opname in _STORES:
        return _NONE, changed
    # All other instructions count as reads, including those of later Pythons. `del` needs a value
    # to delete.
    return (changed if instruction.opname == _SET_ASIDE else frozenset(names)), _NONE


def _names(instruction: dis.Instruction) -> list[str]:
    value: Any = instruction.argval
    return [value] if isinstance(value, str) else list(value)


def _set_aside(
    instructions: list[dis.Instruction], index: dict[int, int], handlers: list[list[int]]
) -> dict[int, frozenset[str]]:
    """Returns the names that an inlined comprehension saves and restores, by the position of
    either.

    The value before is the value afterwards, so this neither reads nor writes it. A comprehension
    in an unknown form counts as a read.
    """
    found: dict[int, frozenset[str]] = {}
    at = 0
    while at < len(instructions):
        begin = at
        names: set[str] = set()
        while instructions[at].opname == _SET_ASIDE:
            names.update(_names(instructions[at]))
            at += 1
        loop = at = at + (not names)
        while names and instructions[loop].opname in _BEFORE_LOOP:
            loop += 1
        if not names or instructions[loop].opname != "FOR_ITER":
            continue
        ends = [index[instructions[loop].argval], *handlers[loop]]
        back = [_stores_from(instructions, end) for end in ends]
        if len(ends) > 1 and all(names <= _written(instructions, stores) for stores in back):
            found |= {each: frozenset(names) for each in (*range(begin, at), *chain(*back))}
    return found


def _stores_from(instructions: list[dis.Instruction], at: int) -> list[int]:
    stores: list[int] = []
    while instructions[at].opname in _AFTER_LOOP or instructions[at].opname in _LOCAL_STORES:
        if instructions[at].opname in _LOCAL_STORES:
            stores.append(at)
        at += 1
    return stores


def _written(instructions: list[dis.Instruction], stores: list[int]) -> set[str]:
    written: set[str] = set()
    for at in stores:
        names = _names(instructions[at])
        written.update(names[:1] if instructions[at].opname == _STORE_THEN_LOAD else names)
    return written


def _live_before(steps: list[_Step]) -> list[frozenset[str]]:
    live = [_NONE] * len(steps)
    changed = True
    while changed:
        changed = False
        for at in range(len(steps) - 1, -1, -1):
            step = steps[at]
            after = _NONE.union(*(live[each] for each in step.following))
            # An instruction that raises may have written nothing.
            before = (after - step.writes).union(
                step.reads, *(live[each] for each in step.handlers)
            )
            if before != live[at]:
                live[at] = before
                changed = True
    return live
