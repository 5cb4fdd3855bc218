"""Programs do not miss what is dead: at each of their marks it is taken away."""

import ctypes
import sys
from collections.abc import Callable
from itertools import chain
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.resume.live_names import live_names

VARIABLES = "abcd"

expressions = st.one_of(
    st.sampled_from(VARIABLES),
    st.integers(0, 9).map(str),
    st.tuples(st.sampled_from(VARIABLES), st.sampled_from(VARIABLES)).map(" + ".join),
    st.tuples(*[st.sampled_from(VARIABLES)] * 3).map(
        lambda three: f"sum([{three[0]} + {three[1]} for {three[0]} in range({three[2]} % 3)])"
    ),
)
names = st.sampled_from(VARIABLES)


def joined(blocks: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(blocks))


simple = st.one_of(
    st.tuples(names, expressions).map(lambda two: [f"{two[0]} = {two[1]}"]),
    st.tuples(names, names, names, names).map(lambda n: [f"{n[0]}, {n[1]} = {n[2]}, {n[3]}"]),
    st.tuples(names, expressions).map(lambda two: [f"{two[0]} += {two[1]}"]),
    expressions.map(lambda value: [f"log({value})"]),
    names.map(lambda name: [f"del {name}"]),
    st.just(["mark()"]),
    st.just(["mark()"]),
    expressions.map(lambda value: [f"if ({value}) % 2: raise ValueError"]),
)


def indented(block: list[str]) -> list[str]:
    return ["    " + line for line in block]


def within(statements: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    block = st.lists(statements, min_size=1, max_size=4).map(joined)
    leave = st.sampled_from([[], ["break"], ["continue"]])
    return st.one_of(
        st.tuples(expressions, block, block).map(
            lambda t: [f"if ({t[0]}) % 2:", *indented(t[1]), "else:", *indented(t[2])]
        ),
        st.tuples(names, block, expressions, leave, block).map(
            lambda t: [
                f"for {t[0]} in range(3):",
                *indented([*t[1], *([f"if ({t[2]}) % 3 == 1: {t[3][0]}"] if t[3] else [])]),
                "else:",
                *indented(t[4]),
            ]
        ),
        st.tuples(names, block, expressions).map(
            lambda t: [
                "for _turn in range(4):",
                f"    if not ({t[2]}) % 3: break",
                *indented(t[1]),
            ]
        ),
        st.tuples(block, names, block, block).map(
            lambda t: [
                *("try:", *indented(t[0])),
                *(f"except Exception as {t[1]}:", *indented(["log('caught')", *t[2]])),
                *("finally:", *indented(t[3])),
            ]
        ),
        st.tuples(names, block).map(lambda t: [f"with manager() as {t[0]}:", *indented(t[1])]),
    )


programs = st.lists(st.recursive(simple, within, max_leaves=12), min_size=2, max_size=6).map(joined)


class Manager:
    """Suppresses what is raised, so that the program goes on."""

    def __enter__(self) -> int:
        return 5

    def __exit__(self, *error: object) -> bool:
        return True


def take_away(frame: FrameType, dead: set[str], function: bool) -> None:
    variables = frame.f_locals
    for name in dead & set(variables):
        if not function:
            del variables[name]
            continue
        variables[name] = "poison"
        if sys.version_info < (3, 13):
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def outcome(run: Callable[[dict[str, Any]], Any], *, function: bool, poison: bool) -> list[Any]:
    """What the program logged, and the kind of what ended it."""
    logged: list[Any] = []

    def mark() -> None:
        frame = sys._getframe(1)
        live = live_names(frame.f_code, frame.f_lasti)
        logged.append("mark")
        if poison:
            take_away(frame, set(VARIABLES) - live, function)

    def log(value: object) -> None:
        logged.append(str(value))

    variables = {"log": log, "mark": mark, "manager": Manager}
    try:
        run(variables)
    except Exception as error:
        logged.append(type(error).__name__)
    return logged


@given(programs)
def test_a_function_does_not_miss_what_is_dead(program: list[str]) -> None:
    text = "\n".join(["def f(a=1, b=2, c=3, d=None):", *indented([*program, "log(a)"])])
    compiled = compile(text, "f.py", "exec")

    def run(variables: dict[str, Any]) -> None:
        exec(compiled, variables)
        variables["f"]()

    assert outcome(run, function=True, poison=True) == outcome(run, function=True, poison=False)


@given(programs)
def test_a_script_does_not_miss_what_is_dead(program: list[str]) -> None:
    text = "\n".join(["a, b, c = 1, 2, 3", *program, "log(a)"])
    compiled = compile(text, "script.py", "exec")

    def run(variables: dict[str, Any]) -> None:
        exec(compiled, variables)

    assert outcome(run, function=False, poison=True) == outcome(run, function=False, poison=False)
