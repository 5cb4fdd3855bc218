"""Functions, classes and generators of a script's variables come back, or are refused."""

from pathlib import Path

import pytest

from gpujob_worker.checkpoint.errors import UnsavableError
from tests.harness.made_again import MadeAgain

# What the script does before its first step, what it does while it trains, and what is compared.
EQUAL = {
    "function changed": (
        """
            def f(x):
                return x
            def g(x):
                return -x
            h = f
        """,
        "h = g",
        "h(3)",
    ),
    "counter": ("ticks = itertools.count(3)", "next(ticks); next(ticks)", "next(ticks)"),
    "counter in steps": ("ticks = itertools.count(3, 2)", "next(ticks)", "next(ticks)"),
    "method of a counter": ("ticks = itertools.count(1).__next__", "ticks(); ticks()", "ticks()"),
    "builtin changed": (
        "h = torch.relu",
        "h = torch.tanh",
        "h(torch.tensor(3.0))",
    ),
    "math fn": (
        "h = math.sin",
        "h = math.cos",
        "h(1)",
    ),
    "F fn": (
        """
            import torch.nn.functional as F
            h = F.mse_loss
        """,
        "h = F.l1_loss",
        "h.__name__",
    ),
    "method changed": (
        """
            class A:
                def f(s):
                    return 1
                def g(s):
                    return 2
            a = A()
            h = a.f
        """,
        "h = a.g",
        "h()",
    ),
    "method other self": (
        """
            class A:
                def f(s):
                    return s
            a = A()
            b = A()
            h = a.f
        """,
        "h = b.f",
        "h() is b",
    ),
    "builtin bound": (
        """
            a = []
            b = []
            h = a.append
        """,
        """
            h = b.append
            a.append(2)
        """,
        "(a, b, h(3), a, b)",
    ),
    "class changed": (
        """
            class A:
                x = 1
            class B:
                x = 2
            k = A
        """,
        "k = B",
        "k.x",
    ),
    "class attr": (
        """
            class A:
                n = 0
                l = []
            a = A()
        """,
        """
            A.n += 1
            A.l.append(2)
            A.z = 5
        """,
        "(A.n, a.l, A.z)",
    ),
    "class attr deleted": (
        """
            class A:
                n = 0
                m = 1
            a = A()
        """,
        "del A.m",
        'hasattr(A, "m")',
    ),
    "class attr base": (
        """
            class A:
                n = 0
            class B(A):
                pass
            b = B()
        """,
        "A.n += 1",
        "(B.n,)",
    ),
    "class attr of instance only": (
        """
            class A:
                n = 0
            def mk():
                class L:
                    n = 0
                return L()
            b = mk()
        """,
        "type(b).n += 1",
        "(b.n,)",
    ),
    "closure nonlocal": (
        """
            def mk():
                n = 0
                def inc():
                    nonlocal n
                    n += 1
                    return n
                return inc
            f = mk()
            g = mk()
        """,
        """
            f()
            f()
        """,
        "(f(), g())",
    ),
    "closure shared": (
        """
            def mk():
                n = 0
                def inc():
                    nonlocal n
                    n += 1
                def get():
                    return n
                return (inc, get)
            f, g = mk()
        """,
        """
            f()
            f()
        """,
        "(f(), g())",
    ),
    "closure new": (
        """
            def mk(k):
                def inc():
                    return k
                return inc
            f = mk(1)
        """,
        "f = mk(2)",
        "f()",
    ),
    "closure split": (
        """
            def mk(k):
                def inc():
                    nonlocal k
                    k += 1
                    return k
                return inc
            f = mk(1)
            g = f
        """,
        "g = mk(5)",
        "(f(), f(), g())",
    ),
    "func attr": (
        """
            def f():
                f.n += 1
                return f.n
            f.n = 0
        """,
        """
            f()
            f()
        """,
        "f()",
    ),
    "func attr deleted": (
        """
            def f():
                pass
            f.n = 0
        """,
        "del f.n",
        'hasattr(f, "n")',
    ),
    "mutable default": (
        """
            def f(x, l=[]):
                l.append(x)
                return l
        """,
        "f(1)",
        "f(2)",
    ),
    "defaults replaced": (
        """
            def f(x=1):
                return x
        """,
        "f.__defaults__ = (5,)",
        "f()",
    ),
    "kwdefaults": (
        """
            def f(*, l=[]):
                l.append(1)
                return l
        """,
        "f()",
        "f()",
    ),
    "wraps decorator": (
        """
            def deco(fn):
                calls = []
                @functools.wraps(fn)
                def w(*a):
                    calls.append(1)
                    return len(calls)
                return w
            @deco
            def f():
                pass
        """,
        "f()",
        "f()",
    ),
    "partial": (
        """
            def k(l, x):
                l.append(x)
                return l
            f = functools.partial(k, [])
        """,
        "f(1)",
        "f(2)",
    ),
    "partial changed": (
        """
            def k(x):
                return x
            f = functools.partial(k, 1)
        """,
        "f = functools.partial(k, 2)",
        "f()",
    ),
    "partial changed list": (
        """
            def k(x):
                return x
            f = functools.partial(k, [1])
        """,
        "f = functools.partial(k, [2])",
        "f()",
    ),
    "partial new fn": (
        """
            def k(x):
                return x
            def j(x):
                return -x
            f = functools.partial(k, 1)
        """,
        "f = functools.partial(j, 1)",
        "f()",
    ),
    "generator fresh args": (
        """
            def g(a):
                yield a
            i = g(1)
        """,
        "i = g(2)",
        "next(i)",
    ),
    "generator ended": (
        """
            def g():
                yield 1
            i = g()
        """,
        "list(i)",
        "list(i)",
    ),
}

# What cannot be read.
REFUSED = {
    "defaultdict later": (
        "d = None",
        "d = collections.defaultdict(lambda: 0)",
    ),
    "lambda changed": (
        "h = lambda x: 1",
        "h = lambda x: 2",
    ),
    "instance method replaced": (
        """
            class A:
                def f(s):
                    return 1
            a = A()
        """,
        "a.f = lambda: 2",
    ),
    "genexp": (
        "i = (x for x in [1, 2])",
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
