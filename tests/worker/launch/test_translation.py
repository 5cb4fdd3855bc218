"""What Python 3.9 gets of the worker's sources means what the sources mean."""

import ast
import importlib.util
from typing import Any

import pytest

from gpujob_worker.launch.command import HOOK_FOLDER

pytestmark = pytest.mark.any_torch

_spec = importlib.util.spec_from_file_location(
    "translation_under_test", HOOK_FOLDER / "gpujob_translation.py"
)
assert _spec is not None
assert _spec.loader is not None
translation: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(translation)
UNION = "_gpujob_union"


def translated(source: str) -> str:
    text = ast.unparse(translation.translated(source))
    return text.replace(f"from typing import Union as {UNION}\n", "").strip()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f(*values, **named)", "f(*values, **named)"),
        ("f(strict=True, slots=True)", "f(strict=True, slots=True)"),
        ("zip(a, b, strict=True)", "zip(a, b)"),
        ("dataclass(frozen=True, slots=True, **more)", "dataclass(frozen=True, **more)"),
        ("x: int | None = 1", f"x: {UNION}[int, None] = 1"),
        ("def f(a: A | B) -> C | None:\n    pass", None),
        ("flags = READ | WRITE", "flags = READ | WRITE"),
        ("names = first | second", "names = first | second"),
        ("Noun = Job | Node", f"Noun = {UNION}[Job, Node]"),
        ("Call = Callable[[int], str | None]", f"Call = Callable[[int], {UNION}[str, None]]"),
        ("kept = options[first | second]", "kept = options[first | second]"),
    ],
)
def test_only_what_python_3_9_cannot_read_is_another(source: str, expected: str | None) -> None:
    if expected is None:
        expected = f"def f(a: {UNION}[A, B]) -> {UNION}[C, None]:\n    pass"
    assert translated(source) == expected


def test_the_docstring_and_the_future_come_first() -> None:
    source = '"""Text."""\nfrom __future__ import annotations\nx = 1\n'
    lines = ast.unparse(translation.translated(source)).splitlines()
    assert lines[1:] == [
        "from __future__ import annotations",
        f"from typing import Union as {UNION}",
        "x = 1",
    ]
