"""Loops that are listed ask the listener; all else of a file is compiled as it is written."""

import builtins
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from gpujob_worker.resume import rerun
from gpujob_worker.resume.loop_headers import rewritten
from tests.harness.rerun_scripts import loops

pytestmark = pytest.mark.any_torch

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
SOURCES = ["argparse.py", "ast.py", "asyncio/base_events.py", "enum.py", "typing.py", "tarfile.py"]


class Asked:
    """A listener that changes nothing, or what a test puts into it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.instead: dict[int, Any] = {}
        self.frames: list[str] = []

    def loop(self, file: str, line: int, iterable: Any) -> Any:
        self.asked.append(("for", line))
        self.frames.append(sys._getframe(2).f_code.co_filename)
        return self.instead.get(line, iterable)

    def turn(self, file: str, line: int) -> bool:
        self.asked.append(("while", line))
        self.frames.append(sys._getframe(2).f_code.co_filename)
        return self.instead.get(line, True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(rerun, "listener", found)
    monkeypatch.setattr(builtins, rerun.LOOP, rerun._loop, raising=False)
    monkeypatch.setattr(builtins, rerun.TURN, rerun._turn, raising=False)
    return found


def run(source: str, lines: set[int] | None = None) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "script"}
    data = source.encode()
    exec(rewritten(data, "script.py", set(loops(data)) if lines is None else lines), names)
    return names


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("name", SOURCES)
def test_without_a_listed_loop_the_code_is_what_it_was(name: str) -> None:
    source = (LIBRARY / name).read_bytes()
    plain = compile(source, name, "exec", dont_inherit=True)
    assert rewritten(source, name, ()) == plain
    assert rewritten(source, name, loops(source)) != plain


@pytest.mark.parametrize("name", SOURCES)
def test_names_and_lines_stay_with_all_loops_listed(name: str) -> None:
    source = (LIBRARY / name).read_bytes()
    plain = list(codes(compile(source, name, "exec", dont_inherit=True)))
    again = list(codes(rewritten(source, name, loops(source))))
    for before, after in zip(plain, again, strict=True):
        for field in ("co_name", "co_qualname", "co_firstlineno", "co_flags", "co_varnames"):
            assert getattr(after, field) == getattr(before, field)
        assert after.co_consts[:1] == before.co_consts[:1] or "<" in before.co_name
        assert lines_of(after) == lines_of(before)


def lines_of(code: CodeType) -> list[int]:
    return sorted({line for *_, line in code.co_lines() if line is not None})


def test_each_kind_of_loop_asks_where_it_stands(asked: Asked) -> None:
    source = """
def f():
    for x in (1, 2):
        n = 3
        while n > 1 or not n:
            n -= 1
        else:
            n = "else"
    while True:
        break
    while 0:
        print("never")
    return n
found = f()
"""
    assert run(source)["found"] == "else"
    turns = [("while", 5)] * 3
    assert asked.asked == [("for", 3), *turns, *turns, ("while", 9)]
    assert set(asked.frames) == {"script.py"}


def test_what_the_listener_returns_is_gone_over(asked: Asked) -> None:
    asked.instead = {1: iter([8, 9]), 3: False, 5: False}
    names = run("for x in (1, 2): last = x\n\nwhile True: last = 0\n\nwhile last: last = 0\n")
    assert names["last"] == 9


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for found, *rest in [(1, 2), (3, 4)]: pass", 3),
        ("for found in 1, *(2, 3): pass", 3),
        ("for found in (yes := [1, 5]): pass", 5),
        ("for found in {7}: pass", 7),
        ("for found in (x for x in range(3) for y in range(2)): pass", 2),
        ("def f():\n    for x in (yield 1): yield x\ng = f(); next(g); found = g.send([4])", 4),
        ("class A:\n    for __x in (1, 2): y = __x\nfound = A.y", 2),
        ("class A:\n    __n = 3\n    while __n: __n -= 1\nfound = A._A__n", 0),
        ("def f(n):\n    while n:\n        n -= 1\n        yield n\n*_, found = f(4)", 0),
        ("found = 0\nwhile found < 3 if True else 0: found += 1", 3),
        ("found = 0\nwhile (found := found + 1) and found < 4: continue", 4),
        ("found = 9\nwhile None: found = 0\nelse: found = 8", 8),
        ("found = 9\nwhile 'x': found = 7; break\nelse: found = 0", 7),
    ],
)
def test_loops_of_any_form_go_on(source: str, expected: Any, asked: Asked) -> None:
    assert run(source)["found"] == expected
    assert len(asked.asked) > 0 or "None" in source


def test_only_what_is_listed_asks(asked: Asked) -> None:
    source = "for x in 1, 2:\n    for y in 1, 2:\n        pass\nwhile x:\n    x = 0\n"
    run(source, {2})
    assert asked.asked == [("for", 2), ("for", 2)]


def test_asynchronous_loops_are_left_alone(asked: Asked) -> None:
    source = b"async def f(values):\n    async for x in values:\n        pass\n"
    plain = compile(source, "script.py", "exec", dont_inherit=True)
    assert rewritten(source, "script.py", {2}) == plain


def test_the_futures_of_the_source_hold_and_no_others() -> None:
    source = b"from __future__ import annotations\ndef f(x: none): pass\nfor x in 1, 2: pass\n"
    names: dict[str, Any] = {}
    code = rewritten(source, "script.py", ())
    exec(code, names)
    assert names["f"].__annotations__ == {"x": "none"}
    with pytest.raises(NameError):
        run("def f(x: none): pass\nfor x in (): pass")


def test_other_encodings_are_read(asked: Asked) -> None:
    source = "# -*- coding: latin-1 -*-\nfound = '\xe9'\nfor x in 1, 2: pass\n".encode("latin-1")
    names: dict[str, Any] = {}
    exec(rewritten(source, "script.py", {3}), names)
    assert (names["found"], asked.asked) == ("\xe9", [("for", 3)])


def test_what_the_listener_raises_the_loop_raises(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*values: Any) -> Any:
        raise ValueError("no place")

    monkeypatch.setattr(asked, "loop", fails)
    names = run(
        "def f():\n    try:\n        for x in 1, 2: pass\n    except ValueError: return 1\n"
    )
    assert names["f"]() == 1


def test_without_a_listener_loops_do_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rerun.listener is None
    monkeypatch.setattr(builtins, rerun.LOOP, rerun._loop, raising=False)
    monkeypatch.setattr(builtins, rerun.TURN, rerun._turn, raising=False)
    assert run("n = 0\nfor x in 1, 2: n += x\nwhile n < 9: n += 1")["n"] == 9
