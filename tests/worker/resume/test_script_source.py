"""Which loops are around a line, and what counts them, as the source tells."""

import ast
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType

import pytest

from gpujob_worker.resume import script_source
from gpujob_worker.resume.script_source import Loop, Source

pytestmark = pytest.mark.any_torch


def codes(text: str) -> dict[str, CodeType]:
    """Each function's code, by its name in the source."""

    def within(code: CodeType) -> Iterator[CodeType]:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from within(constant)

    return {code.co_qualname: code for code in within(compile(text, "train.py", "exec"))}


def around(text: str, line: int, name: str = "<module>") -> list[int]:
    return [loop.line for loop in Source(text).loops_around(codes(text)[name], line)]


def loop_of(text: str) -> Loop:
    node = ast.parse(textwrap.dedent(text)).body[-1]
    assert isinstance(node, (ast.For, ast.While))
    return Loop(node)


NESTED = """\
for a in x:
    with y:
        try:
            while b:
                c
        except E:
            d
        finally:
            e
    if f:
        for g in h: i
else:
    j
"""


@pytest.mark.parametrize(
    ("line", "loops"),
    [(1, [1]), (3, [1]), (4, [1, 4]), (5, [1, 4]), (7, [1]), (9, [1]), (11, [1, 11]), (13, [])],
)
def test_loops_are_found_through_all_statements(line: int, loops: list[int]) -> None:
    assert around(NESTED, line) == loops


def test_a_loop_in_a_match_is_found() -> None:
    text = (
        "for a in x:\n    match a:\n        case 1:\n            for b in y:\n                c\n"
    )
    assert around(text, 5) == [1, 4]


FUNCTIONS = """\
for a in x:
    def f():
        for b in y:
            c
    @decorated(
        z
    )
    def g():
        while d:
            e
    class C:
        def f(self):
            for h in i: j
"""


@pytest.mark.parametrize(
    ("name", "line", "loops"), [("f", 4, [3]), ("g", 10, [9]), ("C.f", 13, [13])]
)
def test_loops_around_a_function_are_not_its_own(name: str, line: int, loops: list[int]) -> None:
    assert around(FUNCTIONS, line, name) == loops


@pytest.mark.parametrize(
    "text",
    [
        "async def f():\n    for a in x:\n        b\n",
        "f = lambda: [\n    a for a in x\n]\n",
        "class f:\n    for a in x:\n        b\n",
    ],
)
def test_code_that_is_no_plain_function_has_no_loops_to_tell(text: str) -> None:
    code = next(found for name, found in codes(text).items() if name != "<module>")
    with pytest.raises(LookupError, match="not a plain function"):
        Source(text).loops_around(code, 2)


def test_a_file_without_a_source_is_an_error() -> None:
    with pytest.raises(LookupError, match="cannot be read"):
        script_source.loops_around(compile("pass", "nowhere.py", "exec"), 1)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("step(i)", "i"),
        ("i = 1", None),
        ("i += 1", None),
        ("(i := 1)", None),
        ("del i", None),
        ("for i in y: pass", None),
        ("for j, *i in y: pass", None),
        ("with y as i: pass", None),
        ("import i", None),
        ("import i.j", None),
        ("import j as i", None),
        ("from j import i", None),
        ("def i(): pass", None),
        ("class i: pass", None),
        ("async def i(): pass", None),
        ("def f():\n        nonlocal i", None),
        ("def f():\n        global i", None),
        ("try: pass\n    except E as i: pass", None),
        ("match y:\n        case i: pass", None),
        ("match y:\n        case [*i]: pass", None),
        ("match y:\n        case {**i}: pass", None),
        ("match y:\n        case C() as i: pass", None),
        ("x.i = 1", "i"),
        ("f(i=1)", "i"),
    ],
)
def test_the_variable_is_one_that_the_body_leaves_alone(body: str, name: str | None) -> None:
    assert loop_of(f"for i in x:\n    {body}\n").number_name == name


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("i", "i"),
        ("i, j", "i"),
        ("[i, j]", "i"),
        ("i, *j", "i"),
        ("i, (j, k)", "i"),
        ("*i, j", None),
        ("(i, j), k", None),
        ("i, i", None),
        ("i, (j, i)", None),
        ("i, y[i]", None),
        ("x.i", None),
        ("x[0]", None),
    ],
)
def test_the_variable_is_the_first_of_the_target_and_there_once(
    target: str, name: str | None
) -> None:
    assert loop_of(f"for {target} in x:\n    pass\n").number_name == name


@pytest.mark.parametrize(
    ("head", "counts"),
    [
        ("range(3)", True),
        ("tqdm(range(3))", True),
        ("enumerate(x)", True),
        ("tqdm(enumerate(x), total=3)", True),
        ("islice(count(), 3)", True),
        ("d.items()", True),
        ("d.values()", False),
        ("x", False),
        ("zip(range(3), x)", False),
        ("f(range(3))", False),
        ("tqdm(total=3)", False),
        ("(1, 2, 3)", True),
        ("[1, 2, 1]", False),
        ("[1, True, 1.0]", True),
        ("[1, x]", False),
        ("{1, 2}", False),
    ],
)
def test_what_gives_no_number_twice(head: str, counts: bool) -> None:
    assert loop_of(f"for i in {head}:\n    pass\n").counts is counts


@pytest.mark.parametrize(
    ("head", "sources", "links"),
    [
        ("x", ["x"], []),
        ("enumerate(tqdm(x), 1)", ["x"], ["enumerate", "tqdm"]),
        ("zip(x, islice(y, 3))", ["x", "y"], ["zip", "islice"]),
        ("f(x)", ["f(x)"], []),
        ("zip()", ["zip()"], []),
    ],
)
def test_items_come_from_the_innermost(head: str, sources: list[str], links: list[str]) -> None:
    loop = loop_of(f"for i in {head}:\n    pass\n")
    assert [ast.unparse(each) for each in loop.source_names()] == sources
    assert [script_source.called(each.call) for each in loop.links()] == links


@pytest.mark.parametrize(
    "statement",
    [
        "x.append(1)",
        "x.y.remove(1)",
        "x['a'].pop()",
        "del x[0]",
        "x[1:] = []",
        "random.shuffle(x)",
        "shuffle(x)",
        "x = []",
    ],
)
def test_a_changed_list_is_seen(statement: str) -> None:
    assert "x" in loop_of(f"for i in z:\n    {statement}\n").changed_names()


@pytest.mark.parametrize(
    "statement", ["x[0] = 1", "len(x)", "x.index(1)", "y.append(x)", "x.y = 1"]
)
def test_a_list_that_keeps_its_items_is_none(statement: str) -> None:
    assert "x" not in loop_of(f"for i in z:\n    {statement}\n").changed_names()


@pytest.mark.parametrize(
    ("text", "header", "body"),
    [
        ("for i in x:\n    a\n    b\n", range(1, 2), range(2, 4)),
        ("for i in f(\n    x\n):\n    a\n", range(1, 4), range(4, 5)),
        ("while x:\n    f(\n    )\n", range(1, 2), range(2, 4)),
        ("while True:\n    # why\n    a\n", range(1, 4), range(3, 4)),
    ],
)
def test_the_lines_at_which_a_turn_begins(text: str, header: range, body: range) -> None:
    loop = loop_of(text)
    assert (loop.header, loop.body) == (header, body)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("for i in x: a\n", "has its body in the line of its head"),
        ("for i in (\n    x): a\n", "has its body in the line of its head"),
        ("while x: a\n", "has its body in the line of its head"),
        ("while (x and\n       y):\n    a\n", "has its condition in more than one line"),
        ("while (\n    x\n):\n    a\n", "has its condition in more than one line"),
    ],
)
def test_loops_whose_turns_do_not_begin_in_a_line_of_their_own(text: str, why: str) -> None:
    assert why in (loop_of(text).refusal or "")


@pytest.mark.parametrize(
    "text",
    [
        "while any([y for y in x]):\n    a\n",
        "for i in enumerate({y for y in x}):\n    a\n",
        "while True:\n    a = {y: 1 for y in x}\n",
    ],
)
def test_comprehensions_that_are_part_of_the_code_around_them(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (loop_of(text).refusal is not None) is (sys.version_info >= (3, 12))
    monkeypatch.setattr(script_source, "_HAS_COMPREHENSIONS_INLINE", True)
    assert "has a comprehension where its turns begin" in (loop_of(text).refusal or "")
    assert loop_of("while True:\n    a\n    b = [y for y in x]\n").refusal is None


def test_a_call_is_found_by_its_place() -> None:
    text = "a(b(1), b(2))\n"
    call = Source(text).call_at((1, 8, 1, 12))
    assert call is not None
    assert ast.unparse(call) == "b(2)"
    assert Source(text).call_at((1, 8, None, None)) is None


def test_values_that_are_bound_in_a_loop() -> None:
    text = "for e in x:\n    n = len(y)\n    m += 1\n    for i in range(n):\n        n = 2\n"
    loop = loop_of(text)
    inner = loop.node.body[-1]
    assert isinstance(inner, ast.For)
    found = script_source.bindings(loop.node, [loop.node, inner])
    assert {
        name: [value and ast.unparse(value) for value in values] for name, values in found.items()
    } == {
        "n": ["len(y)", "2"],
        "m": [None],
    }
