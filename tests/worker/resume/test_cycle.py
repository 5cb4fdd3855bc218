"""The cycle whose place can be read gives what Python's own gives."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from gpujob_worker.resume.cycle import cycle, replace_cycle

pytestmark = pytest.mark.any_torch
PLAIN = itertools.cycle


@pytest.mark.parametrize("items", [[], [1], [1, 2, 3], "ab", range(4)])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 11])
def test_it_gives_what_it_should(items: Any, count: int) -> None:
    assert list(itertools.islice(cycle(items), count)) == list(
        itertools.islice(PLAIN(items), count)
    )


def test_an_iterable_is_read_once_and_no_further_than_asked() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(3):
            read.append(number)
            yield number

    found = cycle(items())
    assert read == []
    assert [next(found) for _ in range(2)] == [0, 1]
    assert read == [0, 1]
    assert [next(found) for _ in range(5)] == [2, 0, 1, 2, 0]
    assert read == [0, 1, 2]


def test_the_same_objects_come_again() -> None:
    items = [[1], [2]]
    found = cycle(items)
    again = [next(found) for _ in range(4)]
    assert all(one is other for one, other in zip(again, items * 2, strict=True))


@pytest.mark.parametrize("kind", [cycle, PLAIN])
def test_an_error_of_the_iterable_is_the_callers_and_it_goes_on(kind: Any) -> None:
    class Broken:
        def __init__(self) -> None:
            self.count = 0

        def __iter__(self) -> "Broken":
            return self

        def __next__(self) -> int:
            self.count += 1
            if self.count == 2:
                raise OSError("EIO")
            if self.count > 3:
                raise StopIteration
            return self.count

    found = kind(Broken())
    assert next(found) == 1
    with pytest.raises(OSError, match="EIO"):
        next(found)
    assert [next(found) for _ in range(3)] == [3, 1, 3]


@pytest.mark.parametrize("kind", [cycle, PLAIN])
def test_what_is_no_iterable_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        kind(3)
    with pytest.raises(TypeError):
        kind(iterable=[1])


def test_its_place_is_in_its_attributes() -> None:
    found = cycle([1, 2, 3])
    for _ in range(5):
        next(found)
    other = cycle([])
    vars(other).update(vars(found), _kept=list(vars(found)["_kept"]))
    assert next(other) == next(found) == 3


def test_scripts_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(itertools, "cycle", PLAIN)
    replace_cycle()
    assert itertools.cycle is cycle
    assert f"{cycle.__module__}.{cycle.__qualname__}" == "itertools.cycle"
