"""docs/promises.md is current, and each promise has tests."""

from pathlib import Path

import pytest

from tests.harness import promises
from tests.harness.promises import PROMISES, MarkedTest, marked
from tests.harness.repository import ROOT, tracked


def test_the_page_is_what_the_markers_say() -> None:
    assert (ROOT / promises.PAGE).read_text(encoding="utf-8") == promises.page(), (
        "make generate writes it"
    )


def test_every_promise_has_a_test_and_every_marker_a_promise() -> None:
    found = marked(tracked("tests/*.py"))
    assert set(found) == set(PROMISES)


SOURCE = """
import pytest
pytestmark = [pytest.mark.promise("I9"), pytest.mark.slow]

@pytest.mark.parametrize("x", [1])
@pytest.mark.promise("I1", "I2")
def test_one(x): ...

class TestMore:
    @pytest.mark.promise("I3")
    async def test_two(self): ...

@pytest.mark.promise("I4")
def no_test(): ...
"""


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("test_x.py", SOURCE, {"I9": "", "I1": "test_one", "I2": "test_one", "I3": "test_two"}),
        ("harness.py", SOURCE, {}),
        ("test_x.py", SOURCE.partition("\n@")[0], {}),
    ],
    ids=["marked", "not a file of tests", "without a test"],
)
def test_which_tests_are_marked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    source: str,
    expected: dict[str, str],
) -> None:
    def relative(path: Path) -> str:
        return path.name

    monkeypatch.setattr(promises, "relative", relative)
    (tmp_path / name).write_text(source)
    found = marked([tmp_path / name])
    assert found == {promise: [MarkedTest(name, test)] for promise, test in expected.items()}
