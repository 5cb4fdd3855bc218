"""Values of a script's variables come back equal and shared as they were, or are refused."""

import random
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.values import reader as values_reader
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.values.table import reader_of, restorer_of
from tests.harness.made_again import MadeAgain

# What the script does before its first step, what it does while it trains, and what is compared.
EQUAL = {
    "two names list": (
        """
            a = [1]
            b = a
        """,
        "a.append(2)",
        "(a, b, a is b)",
    ),
    "two names made apart": (
        """
            a = [1]
            b = [1]
        """,
        """
            b = a
            a.append(2)
        """,
        "(a, b, a is b)",
    ),
    "aliases split": (
        """
            a = [1]
            b = a
        """,
        "b = [3]",
        "(a, b, a is b)",
    ),
    "list in two": (
        """
            x = [1]
            a = {"k": x}
            b = (x, 2)
        """,
        "x.append(5)",
        '(a, b, a["k"] is b[0])',
    ),
    "int float eq": (
        'a = {1: "x"}',
        """
            a = {1.0: "y"}
            b = True
            c = 1.0
        """,
        "(a, b, c)",
    ),
    "-0.0 nan": (
        "a = 0.0",
        """
            a = -0.0
            b = float("nan")
            c = float("inf")
        """,
        "(a, b, c)",
    ),
    "bigint": (
        "a = 1",
        "a = 10**3000",
        "a",
    ),
    "str surrogate": (
        'a = "x"',
        'a = "\\ud800"',
        "ascii(a)",
    ),
    "bytes": (
        'a = b"x"',
        'a = b"yy"',
        "a",
    ),
    "bytearray": (
        """
            a = bytearray(b"x")
            b = a
        """,
        'a += b"yy"',
        "(a, b, a is b)",
    ),
    "dataclass": (
        """
            @dataclass
            class S:
                a: int = 0
                l: list = field(default_factory=list)
            s = S()
            t = s
        """,
        """
            s.a = 3
            s.l.append(s)
        """,
        "(s.a, s.l[0] is s, t is s)",
    ),
    "frozen": (
        """
            @dataclass(frozen=True)
            class S:
                a: int = 0
            s = S()
        """,
        "s = S(4)",
        "s",
    ),
    "slots": (
        """
            @dataclass(slots=True)
            class S:
                a: int = 0
                b: list = None
            s = S()
        """,
        """
            s.a = 4
            s.b = [1]
        """,
        "s",
    ),
    "frozen slots": (
        """
            @dataclass(slots=True, frozen=True)
            class S:
                a: int = 0
            s = S()
        """,
        "s = S(5)",
        "s",
    ),
    "slots unset": (
        """
            class S:
                __slots__ = ("a", "b")
            s = S()
            s.a = 1
            s.b = 2
        """,
        "del s.b",
        '(s.a, hasattr(s, "b"))',
    ),
    "slots private": (
        """
            class B:
                __slots__ = ("__p",)
                def __init__(self, v):
                    self.__p = v
                def g(self):
                    return self.__p
            class S(B):
                __slots__ = ()
            s = S(1)
        """,
        "s = S(2)",
        "s.g()",
    ),
    "getattr override": (
        """
            class S:
                def __init__(s):
                    s.x = 1
                def __getattr__(s, n):
                    return 42
            s = S()
        """,
        "s.x = 5",
        "(s.x, s.y)",
    ),
    "setattr override": (
        """
            class S:
                def __init__(s):
                    object.__setattr__(s, "x", 1)
                def __setattr__(s, n, v):
                    raise TypeError
            s = S()
        """,
        'object.__setattr__(s, "x", 9)',
        "s.x",
    ),
    "eq override": (
        """
            class S:
                def __init__(s, v):
                    s.v = v
                def __eq__(s, o):
                    return True
                def __hash__(s):
                    return 1
            s = [S(1), S(2)]
        """,
        """
            s[0].v = 7
            s.reverse()
        """,
        "[e.v for e in s]",
    ),
    "getattribute": (
        """
            class S:
                def __init__(s):
                    s.v = 1
                def __getattribute__(s, n):
                    return object.__getattribute__(s, n)
            s = S()
        """,
        "s.v = 7",
        "s.v",
    ),
    "property": (
        """
            class S:
                def __init__(s):
                    s._v = 1
                @property
                def v(s):
                    return s._v
                @v.setter
                def v(s, x):
                    s._v = x * 2
            s = S()
        """,
        "s.v = 7",
        "s.v",
    ),
    "cached_property": (
        """
            class S:
                n = 0
                @functools.cached_property
                def v(s):
                    s.n += 1
                    return s.n
            s = S()
        """,
        "s.v",
        '("v" in vars(s), vars(s))',
    ),
    "dict subclass": (
        """
            class D(dict):
                pass
            d = D(a=1)
        """,
        """
            d["b"] = [2]
            d.x = d
        """,
        "(dict(d), d.x is d, type(d).__name__)",
    ),
    "dict subclass setitem": (
        """
            class D(dict):
                def __setitem__(s, k, v):
                    dict.__setitem__(s, k, v * 2)
            d = D(a=1)
        """,
        'd["b"] = 2',
        "dict(d)",
    ),
    "attrdict": (
        """
            class D(dict):
                __getattr__ = dict.get
                __setattr__ = dict.__setitem__
            d = D(a=1)
        """,
        "d.b = 2",
        "dict(d)",
    ),
    "attrdict2": (
        """
            class D(dict):
                def __init__(s, *a, **k):
                    super().__init__(*a, **k)
                    s.__dict__ = s
            d = D(a=1)
        """,
        "d.b = 2",
        "(dict(d), d.__dict__ is d)",
    ),
    "list subclass": (
        """
            class L(list):
                pass
            d = L([1])
        """,
        """
            d.append(2)
            d.x = 1
        """,
        "(list(d), d.x)",
    ),
    "list subclass new": (
        """
            class L(list):
                def __init__(s, n):
                    super().__init__(range(n))
            d = None
        """,
        """
            d = L(3)
            d.append(7)
        """,
        "(list(d), type(d).__name__)",
    ),
    "deque subclass": (
        """
            class Q(collections.deque):
                pass
            d = Q(maxlen=3)
        """,
        "d.extend([1, 2, 3, 4])",
        "(list(d), d.maxlen)",
    ),
    "deque subclass new": (
        """
            class Q(collections.deque):
                pass
            d = None
        """,
        "d = Q([1, 2, 3, 4], maxlen=3)",
        "(list(d), d.maxlen)",
    ),
    "counter subclass": (
        """
            class C(collections.Counter):
                pass
            d = C()
        """,
        'd["a"] += 1',
        "(dict(d),)",
    ),
    "ordered subclass": (
        """
            class C(collections.OrderedDict):
                pass
            d = C(a=1, b=2)
        """,
        """
            d["c"] = 1
            d.move_to_end("a")
        """,
        "(list(d.items()),)",
    ),
    "ordered": (
        "d = collections.OrderedDict(a=1, b=2)",
        """
            d["c"] = 1
            d.move_to_end("a")
        """,
        "(list(d.items()),)",
    ),
    "ordered attrs": (
        "d = collections.OrderedDict(a=1, b=2)",
        "d.x = 3",
        "(list(d.items()), d.x)",
    ),
    "defaultdict subclass": (
        """
            class C(collections.defaultdict):
                pass
            d = C(list)
        """,
        'd["c"].append(1)',
        "(dict(d), d.default_factory)",
    ),
    "defaultdict subclass new": (
        """
            class C(collections.defaultdict):
                pass
            d = None
        """,
        """
            d = C(list)
            d["c"].append(1)
        """,
        "(dict(d), d.default_factory)",
    ),
    "defaultdict": (
        "d = collections.defaultdict(list)",
        'd["c"].append(1)',
        "(dict(d), d.default_factory)",
    ),
    "defaultdict lambda": (
        "d = collections.defaultdict(lambda: [0])",
        """
            d["c"].append(1)
            x = d["n"]
        """,
        '(dict(d), d["z"])',
    ),
    "defaultdict nested": (
        "d = collections.defaultdict(lambda: collections.defaultdict(list))",
        'd["c"]["q"].append(1)',
        '(d["c"]["q"], d["k"]["l"])',
    ),
    "namedtuple": (
        """
            P = collections.namedtuple("P", "x y")
            p = P(1, [2])
        """,
        """
            p = p._replace(x=5)
            q = p
        """,
        "(p, type(p).__name__, q is p)",
    ),
    "NamedTuple class": (
        """
            class P(typing.NamedTuple):
                x: int
                y: list
            p = P(1, [2])
        """,
        """
            p = p._replace(x=5)
            p.y.append(3)
            q = p
        """,
        "(p, type(p).__name__, q is p)",
    ),
    "tuple subclass": (
        """
            class T(tuple):
                pass
            p = T((1,))
        """,
        "p = T((1, 2))",
        "(p, type(p))",
    ),
    "enum": (
        """
            class E(enum.Enum):
                A = 1
                B = 2
            e = E.A
        """,
        "e = E.B",
        "e is E.B",
    ),
    "intenum": (
        """
            class E(enum.IntEnum):
                A = 1
                B = 2
            e = E.A
        """,
        "e = E.B",
        "(e is E.B, type(e))",
    ),
    "strenum": (
        """
            class E(str, enum.Enum):
                A = "a"
                B = "b"
            e = E.A
        """,
        "e = E.B",
        "(e is E.B,)",
    ),
    "flag": (
        """
            class E(enum.Flag):
                A = 1
                B = 2
            e = E.A
        """,
        "e = E.B | E.A",
        "e == E.B | E.A",
    ),
    "enum with state": (
        """
            class E(enum.Enum):
                A = 1
                def __init__(s, v):
                    s.l = []
            e = E.A
        """,
        "e.l.append(1)",
        "e.l",
    ),
    "enum in dict key": (
        """
            class E(enum.Enum):
                A = 1
                B = 2
            d = {E.A: 0}
        """,
        """
            d[E.B] = 3
            d[E.A] += 1
        """,
        "(d[E.B], d[E.A])",
    ),
    "nested enum": (
        """
            class C:
                class E(enum.Enum):
                    A = 1
                    B = 2
            e = C.E.A
        """,
        "e = C.E.B",
        "e is C.E.B",
    ),
    "enum repr": (
        """
            class E(enum.Enum):
                A = 1
                B = 2
                def __repr__(s):
                    return "E"
            e = E.A
        """,
        "e = E.B",
        "e is E.B",
    ),
    "set order": (
        "s = set()",
        """
            for k in [8, 0, 16, 24, 1]:
                s.add(k)
        """,
        "list(s)",
    ),
    "set order history": (
        "s = {0, 8}",
        """
            s = set()
            s.add(8)
            s.add(0)
        """,
        "list(s)",
    ),
    "frozenset order": (
        "s = frozenset([0, 8])",
        "s = frozenset([8, 0])",
        "list(s)",
    ),
    "set of objs": (
        """
            class O:
                pass
            o = O()
            p = O()
            s = {o}
        """,
        "s.add(p)",
        "(o in s, p in s, len(s))",
    ),
    "dict obj key": (
        """
            class O:
                pass
            o = O()
            s = {o: 1}
        """,
        "s[o] = 5",
        "(s[o], len(s))",
    ),
    "dict module key": (
        """
            m = torch.nn.Linear(1, 1)
            o = torch.optim.SGD(m.parameters(), lr=0.1)
            s = {m: 1, m.weight: 3}
        """,
        """
            s[m] = 5
            s[m.weight] = 7
        """,
        "(s[m], s[m.weight], len(s))",
    ),
    "dict order": (
        "d = {1: 1, 2: 2}",
        "d[1] = d.pop(1)",
        "list(d.items())",
    ),
    "hash by attrs": (
        """
            @dataclass(frozen=True)
            class K:
                a: int
            d = {K(1): 1}
        """,
        "d[K(2)] = 5",
        "(d[K(1)], d.get(K(2)), len(d))",
    ),
    "hash by attrs set": (
        """
            @dataclass(frozen=True)
            class K:
                a: int
            d = {K(1)}
        """,
        "d.add(K(2))",
        "(K(1) in d, K(2) in d, len(d))",
    ),
    "random alias then own": (
        """
            g = random.Random(1)
            h = g
        """,
        "h = random.Random(2)",
        "(g.random(), h.random(), g is h)",
    ),
    "torch gen alias then own": (
        """
            g = torch.Generator()
            h = g
        """,
        "h = torch.Generator().manual_seed(5)",
        "(g.initial_seed(), h.initial_seed(), g is h)",
    ),
    "numpy gen alias": (
        """
            g = np.random.default_rng(1)
            h = g
        """,
        "h = np.random.default_rng(2)",
        "(g.random(), h.random(), g is h)",
    ),
    "numpy gen new RandomState": (
        "g = None",
        """
            g = np.random.RandomState(2)
            g.rand()
        """,
        "(g.rand(), type(g))",
    ),
    "numpy gen MT": (
        "g = np.random.Generator(np.random.MT19937(1))",
        "g.random()",
        "g.random()",
    ),
    "numpy gen new": (
        "g = None",
        """
            g = np.random.default_rng(2)
            g.random()
        """,
        "(g.random(), type(g))",
    ),
    "bitgen shared": (
        """
            b = np.random.PCG64(1)
            g = np.random.Generator(b)
        """,
        "g.random()",
        "(g.random(),)",
    ),
    "cyc tuple": (
        """
            a = []
            t = (a,)
        """,
        "a.append(t)",
        "(a[0] is t, a[0][0] is a)",
    ),
    "cyc tuple new": (
        """
            a = []
            t = None
        """,
        """
            t = (a,)
            a.append(t)
        """,
        "(a[0] is t, a[0][0] is a)",
    ),
    "linked": (
        """
            class N:
                def __init__(s, n):
                    s.n = n
            h = None
        """,
        """
            for i in range(3000):
                h = N(h)
        """,
        "h.n.n.n is not None",
    ),
    "datetime": (
        "t = datetime.datetime(2020, 1, 1)",
        "t = datetime.datetime(2021, 1, 1)",
        "t",
    ),
    "timedelta": (
        "t = datetime.timedelta(0)",
        "t = datetime.timedelta(5)",
        "t",
    ),
    "decimal": (
        't = decimal.Decimal("1")',
        't = decimal.Decimal("1.10")',
        "t",
    ),
    "device": (
        't = torch.device("cpu")',
        't = torch.device("cuda:0")',
        "t",
    ),
    "dtype": (
        "t = torch.float32",
        "t = torch.bfloat16",
        "t",
    ),
    "path": (
        't = pathlib.Path("a")',
        't = pathlib.Path("b\'")',
        "t",
    ),
    "npdtype": (
        't = np.dtype("f4")',
        't = np.dtype("f8")',
        "t",
    ),
    "re": (
        't = re.compile("a" * 300)',
        't = re.compile("a" * 299 + "b")',
        "t.pattern",
    ),
    "slice": (
        "t = slice(1)",
        "t = slice(2)",
        "t",
    ),
    "range": (
        "t = range(1)",
        "t = range(1, 10, 2)",
        "t",
    ),
    "uuid": (
        "t = uuid.UUID(int=1)",
        "t = uuid.UUID(int=2)",
        "t",
    ),
    "exception": (
        "t = ValueError(1)",
        "t = ValueError(2)",
        "t",
    ),
    "weakref": (
        """
            class A:
                pass
            a = A()
            b = A()
            r = weakref.ref(a)
        """,
        "r = weakref.ref(b)",
        "r() is b",
    ),
    "namespace": (
        "a = argparse.Namespace(lr=1)",
        """
            a.lr = 2
            a.x = [1]
            del a.x
        """,
        "vars(a)",
    ),
    "simplens": (
        "a = types.SimpleNamespace(lr=1, y=2)",
        """
            a.lr = 2
            a.x = [1]
            del a.y
        """,
        "vars(a)",
    ),
    "iter": (
        """
            a = [1, 2, 3]
            i = iter(a)
        """,
        "next(i)",
        "list(i)",
    ),
    "enumerate": (
        """
            a = [1, 2, 3]
            i = enumerate(a)
        """,
        "next(i)",
        "list(i)",
    ),
    "zip": (
        """
            a = [1, 2, 3]
            i = zip(a, a)
        """,
        "next(i)",
        "list(i)",
    ),
    "iter shared": (
        """
            a = iter([1, 2, 3])
            i = a
            z = zip(a, a)
        """,
        "next(i)",
        "(next(i), a is i, next(a))",
    ),
    "iter while": (
        """
            a = [1, 2, 3]
            i = iter(a)
        """,
        """
            next(i)
            a.append(9)
        """,
        "list(i)",
    ),
    "iter ended": (
        """
            a = [1]
            i = iter(a)
        """,
        """
            list(i)
            a.append(5)
        """,
        "list(i)",
    ),
    "iter tensor": (
        """
            a = torch.arange(4)
            i = iter(a)
        """,
        "next(i)",
        "next(i)",
    ),
}

# What cannot be read.
REFUSED = {
    "memoryview": (
        """
            a = bytearray(b"x")
            b = memoryview(a)
        """,
        "c = 1",
    ),
    "array.array": (
        """
            import array
            a = array.array("d", [1.0])
        """,
        "a.append(2.0)",
    ),
    "int subclass": (
        """
            class I(int):
                pass
            i = I(1)
        """,
        "i = I(2)",
    ),
    "str subclass": (
        """
            class I(str):
                pass
            i = I("a")
        """,
        'i = I("b")',
    ),
    "float subclass attrs": (
        """
            class I(float):
                pass
            i = I(1)
        """,
        """
            i = I(2)
            i.x = 1
        """,
    ),
    "set order del": (
        "s = set(range(100))",
        """
            for k in range(95):
                s.discard(k)
            s.add(1000)
            s.add(3)
        """,
    ),
    "iter dict": (
        """
            a = {1: 1, 2: 2}
            i = iter(a)
        """,
        "next(i)",
    ),
    "map": (
        "i = map(abs, [1, 2, 3])",
        "next(i)",
    ),
    "cycle": (
        "i = itertools.cycle([1, 2, 3])",
        "next(i)",
    ),
    "chain": (
        "i = itertools.chain([1, 2], [3])",
        "next(i)",
    ),
    "reversed": (
        "i = reversed([1, 2, 3])",
        "next(i)",
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_and_shared_as_before(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, trains, shows = EQUAL[name]
    script = MadeAgain(tmp_path, monkeypatch, before)
    trained, again = script.come_back(trains)
    expected = repr(eval(shows, trained))
    assert repr(eval(shows, again)) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, trains = REFUSED[name]
    script = MadeAgain(tmp_path, monkeypatch, before)
    with pytest.raises(UnsavableError):
        script.come_back(trains)


def test_a_value_that_cannot_be_read_leaves_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = MadeAgain(tmp_path, monkeypatch, "inner = [1]\n")
    variables = script.begin()
    reader = reader_of([], Baseline())
    inner = variables["inner"]
    with pytest.raises(UnsavableError, match=r"odd\[1\] is a builtins.memoryview"):
        reader.names("script", {"odd": [inner, memoryview(b"a"), [2]]})
    found = reader.names("script", {"inner": inner})
    assert restorer_of(reader.nodes, [], Passes()).value(found["inner"], None, "inner") == [1]


def test_more_values_than_are_saved_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_reader, "NODES_MAX", 10)
    with pytest.raises(UnsavableError, match="more than 10 values"):
        reader_of([], Baseline()).names("script", {"many": [[] for _ in range(10)]})


def test_a_large_container_that_is_unchanged_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = MadeAgain(tmp_path, monkeypatch, "words = {str(n): n for n in range(6000)}\n")
    trained = script.begin()
    script.see(trained)
    saved = script.read(trained)
    assert [node["k"] for node in saved.body["nodes"]] == ["unchanged"]
    script.put_back(saved, script.begin())
    other = script.begin()
    other["words"]["7"] = 8
    with pytest.raises(MismatchError, match="words is not what it was"):
        script.put_back(saved, other)
    trained["words"]["7"] = 9
    again = script.begin()
    script.put_back(script.read(trained), again)
    assert again["words"] == trained["words"]


def test_what_is_in_a_large_container_and_has_a_name_is_the_same_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = MadeAgain(tmp_path, monkeypatch, "rows = [[n] for n in range(6000)]\nrow = None\n")
    _, again = script.come_back("row = rows[5]")
    assert again["row"] is again["rows"][5]


_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)


def _built(seed: int, leaves: list[Any]) -> dict[str, Any]:
    """Containers, tensors and arrays, of which each may be in several of the later ones."""
    chosen = random.Random(seed)
    tensor = torch.arange(12.0).reshape(3, 4)
    array = np.arange(6.0).reshape(2, 3)
    known: list[Any] = [tensor, tensor[1:], tensor.t(), array, array[1], array.T]
    for _ in range(12):
        some = [chosen.choice([*known, *leaves]) for _ in range(chosen.randrange(4))]
        named = {str(place): each for place, each in enumerate(some)}
        made: Any = chosen.choice(
            (list(some), tuple(some), deque(some, 5), named, OrderedDict(named))
        )
        lists = [each for each in known if type(each) is list]
        if lists and chosen.random() < 0.3:
            chosen.choice(lists).append(made)  # it may contain itself
        known.append(made)
    return {f"v{place}": each for place, each in enumerate(known) if chosen.random() < 0.6}


def _shape(variables: dict[str, Any]) -> list[Any]:
    """All that can be reached, each object under a number of its own, with its place in memory
    against the first one that looks there.
    """
    numbers: dict[int, int] = {}
    found: list[Any] = []
    waiting: deque[Any] = deque([variables])
    alive: list[Any] = []
    first: dict[str, int] = {}
    while waiting:
        value = waiting.popleft()
        alive.append(value)
        items: list[Any] = []
        if isinstance(value, dict):
            items = [each for pair in value.items() for each in pair]
        elif isinstance(value, (list, tuple, deque)):
            items = list(value)
        row: list[Any] = [type(value).__name__]
        for each in items:
            if isinstance(each, (dict, list, tuple, deque, torch.Tensor, np.ndarray)):
                if id(each) not in numbers:
                    numbers[id(each)] = len(numbers)
                    waiting.append(each)
                row.append(("r", numbers[id(each)]))
            else:
                row.append((type(each).__name__, repr(each)))
        if isinstance(value, torch.Tensor):
            start = first.setdefault("tensor", value.data_ptr())
            row += [value.tolist(), value.stride(), value.data_ptr() - start]
        if isinstance(value, np.ndarray):
            start = first.setdefault("array", value.ctypes.data)
            row += [value.tolist(), value.strides, value.ctypes.data - start]
        found.append(row)
    return found


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(0, 1 << 32), st.lists(_leaves, min_size=1, max_size=6))
def test_whatever_was_shared_is_shared_again(seed: int, other: int, leaves: list[Any]) -> None:
    """Also where the objects that are there are shared in another way."""
    saved, existing = _built(seed, leaves), _built(other, leaves)
    expected = _shape(saved)
    reader = reader_of([], Baseline())
    body = {"names": reader.names("script", saved), "nodes": reader.nodes}
    text, tensors = encode_tree(body)
    body = decode_tree(text, {name: tensor.clone() for name, tensor in tensors.items()})
    restorer = restorer_of(body["nodes"], [], Passes())
    found = {
        name: restorer.value(each, existing.get(name), name) for name, each in body["names"].items()
    }
    assert _shape(found) == expected


@pytest.mark.parametrize(
    ("before", "saved"),
    [({"a": 1, "b": 2}, {"a": 3, "b": 4}), ({"a": 1, 1: 2}, {"a": 3, True: 4}), ({}, {"a": 1})],
)
def test_a_dictionary_is_put_back_under_a_loop_over_it(before: Any, saved: Any) -> None:
    reader = reader_of([], Baseline())
    names = reader.names("script", {"found": saved})
    keys = iter(before)
    next(keys, None)
    found = restorer_of(reader.nodes, [], Passes()).value(names["found"], before, "found")
    assert found is before
    assert [(type(key), key, value) for key, value in found.items()] == [
        (type(key), key, value) for key, value in saved.items()
    ]
    if list(before) == ["a", "b"]:
        assert list(keys) == ["b"]
