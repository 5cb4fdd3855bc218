"""A state comes back value by value and type by type, or is refused by the place and the type."""

import enum
import json
import math
import re
import sys
import time
import types
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_worker.checkpoint.errors import (
    CorruptError,
    MismatchError,
    UnreadableError,
    UnsavableError,
)
from gpujob_worker.checkpoint.store import Store
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree


class Point(NamedTuple):
    x: int
    y: Any


made: Any = namedtuple
Pair = made("Pair", ["left", "right"])


class Phase(enum.StrEnum):
    WARM = "warm"
    MAIN = "main"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Colour(enum.Enum):
    RED = "warm"


class Choice(enum.Flag):
    ONE = 1
    TWO = 2


class Name(str):
    __slots__ = ()

    def __new__(cls, *arguments: Any) -> "Name":
        raise AssertionError("called on the way back")


class Metres(float):
    def __init__(self, x: Any = 0, /) -> None:
        raise AssertionError("called on the way back")


class Index(int):
    pass


class Slotted(str):
    __slots__ = ("unit",)


class Dictionary(dict):  # type: ignore[type-arg]
    pass


class Nested:
    class Pair(NamedTuple):
        a: int

    class Inner(enum.Enum):
        DEEP = 1


def back(value: Any) -> Any:
    text, tensors = encode_tree(value)
    return decode_tree(text, tensors)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=True)
        return all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(left, (list, tuple, deque)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, (float, complex)):
        return repr(left) == repr(right)
    return left == right


VALUES: list[Any] = [
    OrderedDict([("b", 1), ("a", [2])]),
    Counter({"b": 3, "a": 0, "c": -1}),
    Counter({30: 1, 60: 2}),
    defaultdict(int, {"a": 1}),
    defaultdict(list, {1: [torch.ones(2)]}),
    defaultdict(None, {"a": 1}),
    deque([1, [2]], maxlen=5),
    deque(),
    {1, 2, 3},
    {"a", None, (1, 2)},
    frozenset({1.5, "x"}),
    {frozenset({1}): set[int]()},
    b"",
    b"\x00\xff" * 300,
    bytearray(b"abc"),
    {b"key": b"value"},
    complex(-0.0, math.inf),
    1 + 2j,
    10**5000,
    -(2**70000),
    Point(1, [Point(2, None)]),
    Pair({"a": 1}, torch.arange(3)),
    Nested.Pair(4),
    {Point(1, 2): "key"},
    Phase.MAIN,
    Level.HIGH,
    Colour.RED,
    Nested.Inner.DEEP,
    Choice.TWO,
    {Phase.WARM: 1, Level.LOW: 2, Colour.RED: 3},
    np.str_("text"),
    [np.float32(0.1), np.int64(3), np.bool_(True), np.complex64(1j)],
    np.array(3.5),
    np.arange(6, dtype=np.uint16).reshape(2, 3),
    torch.Size([2, 3]),
    Index(7),
    str.__new__(Name, "loss"),
    float.__new__(Metres, -1.5),
    {str.__new__(Name, "key"): Index(2**80)},
    [True, False, None, "", "\ud800", -0.0, 1e-320],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_a_value_comes_back_as_the_type_that_it_had(value: Any) -> None:
    assert same(back(value), value)
    assert same(back({"nested": [value]}), {"nested": [value]})


def test_a_container_goes_on_as_what_it_was() -> None:
    found = back({"d": defaultdict(list), "q": deque([1, 2], maxlen=2), "b": bytearray(b"a")})
    found["d"]["new"].append(1)
    found["q"].append(3)
    found["b"] += b"b"
    assert found == {"d": {"new": [1]}, "q": deque([2, 3]), "b": bytearray(b"ab")}
    assert found["q"].maxlen == 2


def test_the_state_of_a_module_has_its_versions() -> None:
    state: Any = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).state_dict()
    found = back(state)
    assert type(found) is OrderedDict
    assert same(found, state)
    assert vars(found) == vars(state)
    assert vars(found)["_metadata"]["0"] == {"version": 2}


def test_a_multi_step_schedule_goes_on() -> None:
    """It has its milestones in a Counter."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    schedule.load_state_dict(back(schedule.state_dict()))
    optimizer.step()
    with pytest.warns(UserWarning, match="The epoch parameter"):
        schedule.step(1)
    assert schedule.get_last_lr() == [0.1]


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.binary(max_size=4)
KEYS = st.text(max_size=3) | st.integers() | st.sampled_from([Phase.WARM, Level.LOW])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, mappings = st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)
    kinds: list[st.SearchStrategy[Any]] = [
        lists,
        mappings,
        st.builds(deque, lists, st.sampled_from([None, 9])),
        st.builds(Point, st.integers(), inner),
        st.builds(OrderedDict, mappings),
        st.builds(defaultdict, st.just(list), mappings),
        st.builds(Counter, st.lists(KEYS, max_size=4)),
        st.frozensets(KEYS, max_size=3),
    ]
    return st.one_of(kinds)


TREES = st.recursive(
    LEAVES | st.complex_numbers(allow_nan=False) | st.sampled_from([*Phase, *Level]),
    containers,
    max_leaves=8,
)


@settings(max_examples=200)
@given(TREES)
def test_every_tree_comes_back_type_by_type(tree: Any) -> None:
    assert same(back(tree), tree)


def unsavable() -> dict[str, tuple[Any, str]]:
    class Local(NamedTuple):
        a: int

    with_attribute = Index(3)
    with_attribute.unit = "m"  # type: ignore[attr-defined]
    counter: Any = Counter("ab")
    counter.unit = "m"
    return {
        "class in a function": (Local(1), "class unsavable.<locals>.Local is not found"),
        "flags": (Choice.ONE | Choice.TWO, "no single member of Choice"),
        "attribute": (with_attribute, "a Index with attributes"),
        "attribute of a container": (counter, "a Counter with attributes"),
        "slot": (Slotted("a"), "a Slotted with attributes"),
        "factory": (defaultdict(lambda: 1), "a defaultdict of .*lambda.* cannot be saved"),
        "counter as factory": (defaultdict(Counter), "a defaultdict of Counter cannot be saved"),
        "subclass of dict": (Dictionary(), "a Dictionary cannot be saved without pickle"),
        "like a dict": (UserDict(), "a UserDict cannot be saved without pickle"),
        "struct": (time.gmtime(0), "a struct_time cannot be saved without pickle"),
        "mask": (np.ma.array([1], mask=[True]), "a MaskedArray cannot be saved without pickle"),
        "objects": (np.array([None]), "an array of object cannot be saved"),
        "byte order": (np.zeros(2, ">f4"), "an array of >f4 cannot be saved"),
        "range": (range(3), "a range cannot be saved without pickle"),
        "function": (unsavable, "a function cannot be saved without pickle"),
        "class": (Point, "a type cannot be saved without pickle"),
        "dtype": (torch.float32, "a dtype cannot be saved without pickle"),
        "meta": (torch.ones(1, device="meta"), "in torch.strided on meta cannot be saved"),
        "sparse": (torch.eye(2).to_sparse(), "in torch.sparse_coo on cpu cannot be saved"),
    }


@pytest.mark.parametrize("name", list(unsavable()))
def test_anything_else_is_refused_by_its_place(name: str) -> None:
    value, text = unsavable()[name]
    with pytest.raises(UnsavableError, match=rf"^state\.a\[1\]: .*{text}"):
        encode_tree({"a": [1, value]})


def cyclic() -> list[Any]:
    values: list[Any] = [[], {}, deque(), OrderedDict(), defaultdict(list)]
    for value in values[:1] + values[2:3]:
        value.append(value)
    for value in (values[1], *values[3:]):
        value["again"] = [value]
    return values


@pytest.mark.parametrize("value", cyclic(), ids=lambda value: type(value).__name__)
def test_what_contains_itself_is_refused(value: Any, tmp_path: Path) -> None:
    store = Store(tmp_path, attempt=1)
    with pytest.raises(UnsavableError, match=r"^state\.a\S*: the \w+ contains itself"):
        store.save(1, {"a": value})
    assert store.steps() == []


def test_what_appears_twice_is_no_cycle() -> None:
    twice = [1]
    found = back({"a": twice, "b": [twice, twice]})
    assert found == {"a": [1], "b": [[1], [1]]}
    assert found["b"][0] is not found["b"][1]


def deep(levels: int, kind: type = list) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else kind([value])
    return value


@pytest.mark.parametrize("kind", [list, tuple, dict, deque])
def test_what_is_nested_too_deeply_is_refused(kind: type) -> None:
    assert back(deep(100, kind)) == deep(100, kind)
    for levels in (101, 900, 20_000):
        with pytest.raises(UnsavableError, match="nested in more than 100 others"):
            encode_tree(deep(levels, kind))


def test_what_python_does_not_expect_is_refused_as_well(tmp_path: Path) -> None:
    lazy = torch.nn.LazyLinear(2).weight

    class Fails(torch.Tensor):
        def is_conj(self) -> bool:
            raise ZeroDivisionError

    for value in (lazy, torch.ones(1).as_subclass(Fails)):
        with pytest.raises(UnsavableError, match="cannot be saved"):
            Store(tmp_path, attempt=1).save(1, {"a": value})


def test_two_keys_of_one_tensor_are_refused() -> None:
    """They would come back as one."""
    tensor = torch.ones(2)
    with pytest.raises(UnsavableError, match=r"state\.a: two of its keys are the same tensor"):
        encode_tree({"a": {tensor: 1, tensor.detach(): 2}})
    assert len(back({tensor: 1, torch.ones(2): 2})) == 2


@pytest.mark.parametrize("conjugate_first", [True, False])
def test_views_that_differ_in_a_sign_alone(conjugate_first: bool) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    views = {"z": z, "conjugate": z.conj(), "part": z.imag, "negative": z.conj().imag}
    assert views["negative"].is_neg(), "the sign is only noted, or the test proves nothing"
    if conjugate_first:
        views = dict(reversed(views.items()))
    text, tensors = encode_tree({**views, "again": z.conj()})
    assert len(tensors) == 4
    found = decode_tree(text, tensors)
    for name, value in views.items():
        assert torch.equal(found[name], value), name
    assert found["again"] is found["conjugate"]


def test_signs_come_back_from_a_file(tmp_path: Path) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    store = Store(tmp_path, attempt=1)
    store.save(1, {"c": z.conj(), "z": z})
    loaded = store.load()
    assert loaded is not None
    assert loaded.state["c"].tolist() == [1 - 2j, 3 + 4j]
    assert loaded.state["z"].tolist() == [1 + 2j, 3 - 4j]


def renamed(text: str, name: str) -> str:
    return re.sub(r'"class":"[^"]*"', f'"class":{json.dumps(name)}', text)


NO_CLASSES = [
    "gone:Point",
    f"{__name__}:Gone",
    f"{__name__}:Point.gone",
    f"{__name__}:unsavable",
    f"{__name__}:Dictionary",
    "os:system",
    "os:environ",
    "builtins:print",
    "builtins:dict",
    "antigravity:fly",
    "",
    ":",
]


@pytest.mark.parametrize("value", [Point(1, 2), Phase.MAIN, Index(3)], ids=["tuple", "enum", "int"])
@pytest.mark.parametrize("name", NO_CLASSES)
def test_a_class_that_is_not_there_is_named(value: Any, name: str) -> None:
    text, tensors = encode_tree(value)
    with pytest.raises(MismatchError, match=re.escape(f"a value is of the class {name}, which")):
        decode_tree(renamed(text, name), tensors)
    assert "antigravity" not in sys.modules


def test_nothing_runs_for_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the module's __getattr__ nor the class's own constructor."""
    module = types.ModuleType("lazy_module")
    module.__getattr__ = lambda name: pytest.fail(name)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    text, tensors = encode_tree(Point(1, 2))
    with pytest.raises(MismatchError, match="lazy_module:Point, which is not imported"):
        decode_tree(renamed(text, "lazy_module:Point"), tensors)

    def called(*arguments: Any) -> None:
        pytest.fail("called")

    monkeypatch.setattr(Point, "__new__", called)
    assert type(decode_tree(text, tensors)) is Point


def test_a_class_that_is_another_one_now() -> None:
    text, tensors = encode_tree(Point(1, 2))
    with pytest.raises(MismatchError, match=r"had the fields \['x', 'y'\], and has .*right.* now"):
        decode_tree(renamed(text, f"{__name__}:Pair"), tensors)
    text, tensors = encode_tree(Phase.MAIN)
    with pytest.raises(MismatchError, match="Level has no member MAIN any more"):
        decode_tree(renamed(text, f"{__name__}:Level"), tensors)


CRAFTED = [
    {"$": "int", "value": "zz"},
    {"$": "complex", "real": 1},
    {"$": "set", "items": [1, 1]},
    {"$": "set", "items": [{"$": "list", "items": []}]},
    {"$": "dict", "items": [[1, 2], [1, 3]]},
    {"$": "dict", "items": 3},
    {"$": "deque", "maxlen": 1, "items": [1, 2]},
    {"$": "deque", "maxlen": -1, "items": []},
    {"$": "defaultdict", "factory": "eval", "items": []},
    {"$": "defaultdict", "factory": [], "items": []},
    {"$": "OrderedDict", "items": [], "attributes": 3},
    {"$": "bytes", "name": "t0"},
    {"$": "array", "name": "t0", "dtype": "int64", "scalar": False},
    {"$": "torch.Size", "items": ["a"]},
    {"$": "namedtuple", "class": f"{__name__}:Point", "fields": ["x", "y"], "items": [1]},
    {"$": "namedtuple", "class": 3, "fields": [], "items": []},
    {"$": "enum", "class": f"{__name__}:Phase", "name": []},
    {"$": "subclass", "class": f"{__name__}:Index", "of": "int", "value": "7"},
    {"$": "subclass", "class": f"{__name__}:Index", "of": "object", "value": 7},
    {"$": []},
    {"$": None},
]


@pytest.mark.parametrize("data", CRAFTED, ids=str)
def test_what_is_not_written_so_is_damage(data: Any) -> None:
    with pytest.raises(CorruptError, match="state cannot be read"):
        decode_tree(json.dumps(data), {"t0": torch.ones(2)})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"$":"list","items":[' * 5000 + "]}" * 5000])
def test_a_text_that_is_nested_too_deeply_is_damage(text: str) -> None:
    with pytest.raises(CorruptError, match="nested in more than 100 others"):
        decode_tree(text, {})


def test_too_little_stack_is_no_damage() -> None:
    """The state is good; where it is loaded, there is no room for the calls."""
    text, tensors = encode_tree(["brackets in a text are none: " + "[" * 1000, deep(99)])

    def called(levels: int) -> Any:
        return called(levels - 1) if levels else decode_tree(text, tensors)

    with pytest.raises(UnreadableError, match="the calls are nested too deeply"):
        called(sys.getrecursionlimit() - len(frames()) - 100)
    assert same(called(0), ["brackets in a text are none: " + "[" * 1000, deep(99)])


def frames() -> list[Any]:
    found, frame = list[Any](), sys._getframe()
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found
