"""Tensors and arrays of a script's variables come back with their memory, or are refused."""

from pathlib import Path

import pytest
import torch

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from tests.harness.made_again import MadeAgain

# What the script does before its first step, what it does while it trains, and what is compared.
EQUAL = {
    "tensor names": (
        """
            a = torch.zeros(3)
            b = a
        """,
        "a += 1",
        "(a, b, a is b)",
    ),
    "views": (
        """
            a = torch.zeros(4, 4)
            b = a[1]
            c = a.t()
        """,
        "a += torch.arange(16).view(4, 4)",
        "(a, b, c, b.data_ptr() - a.data_ptr(), c.data_ptr() == a.data_ptr())",
    ),
    "view only later": (
        "a = torch.zeros(4, 4)",
        """
            b = a[1]
            a += 1
        """,
        "(a, b, b.data_ptr() - a.data_ptr())",
    ),
    "view before now own": (
        """
            a = torch.zeros(4, 4)
            b = a[1]
        """,
        """
            b = torch.ones(4)
            a += 2
        """,
        "(a, b, b.data_ptr() - a.data_ptr() if abs(b.data_ptr() - a.data_ptr()) < 64 else None)",
    ),
    "numpy of torch": (
        """
            a = torch.zeros(4)
            n = a.numpy()
        """,
        "a += 1",
        '(a, n, n.__array_interface__["data"][0] == a.data_ptr())',
    ),
    "numpy of torch later": (
        "a = torch.zeros(4)",
        """
            n = a.numpy()
            a += 1
        """,
        '(a, n, n.__array_interface__["data"][0] == a.data_ptr())',
    ),
    "torch of numpy": (
        """
            n = np.zeros(4)
            a = torch.from_numpy(n)
        """,
        "a += 1",
        '(a, n, n.__array_interface__["data"][0] == a.data_ptr())',
    ),
    "numpy views": (
        """
            a = np.zeros((4, 4))
            b = a[1]
        """,
        "a += 1",
        "(a, b, np.shares_memory(a, b))",
    ),
    "numpy views later": (
        "a = np.zeros((4, 4))",
        """
            b = a[1]
            a += 1
        """,
        "(a, b, np.shares_memory(a, b))",
    ),
    "numpy strided": (
        "a = np.arange(12.0).reshape(3, 4)",
        "a = np.asfortranarray(a + 1)",
        "(a, a.flags.f_contiguous, a.strides)",
    ),
    "numpy readonly": (
        "a = np.arange(12.0)",
        """
            a = a + 1
            a.flags.writeable = False
        """,
        "(a, a.flags.writeable)",
    ),
    "numpy 0d": (
        "a = np.array(1.0)",
        "a = np.array(2.0)",
        "(a, type(a))",
    ),
    "numpy structured": (
        'a = np.zeros(3, dtype=[("x", "f4"), ("y", "i8")])',
        'a["x"] = 3',
        "(a,)",
    ),
    "numpy str array": (
        'a = np.array(["a", "b"])',
        'a = np.array(["abc"])',
        "(a,)",
    ),
    "numpy datetime": (
        'a = np.array(["2020-01-01"], dtype="M8[D]")',
        "a = a + 1",
        "(a,)",
    ),
    "numpy float16": (
        "a = np.zeros(3, np.float16)",
        "a += 1",
        "(a,)",
    ),
    "numpy complex": (
        "a = np.zeros(3, complex)",
        "a += 1j",
        "(a,)",
    ),
    "numpy longdouble": (
        "a = np.zeros(3, np.longdouble)",
        "a += 1",
        "(a,)",
    ),
    "np bigendian": (
        'a = np.zeros(3, ">f4")',
        "a += 1",
        "(a, a.dtype)",
    ),
    "requires grad leaf": (
        "a = torch.zeros(3)",
        "a.requires_grad_()",
        "(a, a.is_leaf)",
    ),
    "leaf grad": (
        "a = torch.zeros(3, requires_grad=True)",
        """
            (a * a).sum().backward()
            a.grad += 7
        """,
        "(a, a.grad)",
    ),
    "noncontig": (
        "a = torch.zeros(4, 6)[::2, 1:5:3]",
        "a += 1",
        "(a, a.stride(), a.storage_offset())",
    ),
    "zero size": (
        "a = torch.zeros(0, 3)",
        """
            a = torch.zeros(0, 5)
            b = torch.zeros(0, 5)
            c = a
        """,
        "(a.shape, a is b, a is c)",
    ),
    "zero size view": (
        "a = torch.zeros(4)",
        """
            b = a[:0]
            a += 1
        """,
        "(a, b.shape)",
    ),
    "0 dim": (
        "a = torch.tensor(1.0)",
        "a += 1",
        "(a,)",
    ),
    "complex": (
        """
            a = torch.zeros(2, dtype=torch.complex64)
            b = a.conj()
            c = a.imag
        """,
        "a += 1 + 2j",
        "(a, b, b.is_conj(), c, c.data_ptr() - a.data_ptr())",
    ),
    "neg": (
        """
            a = torch.zeros(2, dtype=torch.complex64)
            c = a.conj().imag
        """,
        "a += 1 + 2j",
        "(a, c, c.is_neg())",
    ),
    "expand": (
        "a = torch.zeros(1, 3).expand(4, 3)",
        "a = torch.ones(1, 3).expand(4, 3)",
        "(a, a.stride())",
    ),
    "nan payload": (
        "a = torch.zeros(2)",
        "a.view(torch.int32).fill_(2143363909)",
        "(a.view(torch.int32),)",
    ),
    "alias tensor then own": (
        """
            a = torch.zeros(4)
            b = a
        """,
        """
            b = torch.ones(4)
            a += 5
        """,
        "(a, b, a is b)",
    ),
    "alias of weight then own": (
        """
            m = torch.nn.Linear(2, 2)
            w = m.weight
        """,
        "w = torch.ones(2, 2)",
        "(m.weight, w)",
    ),
    "alias of weight.data then own": (
        """
            m = torch.nn.Linear(2, 2)
            w = m.weight.data
        """,
        "w = torch.ones(2, 2)",
        "(m.weight, w)",
    ),
    "best state": (
        """
            m = torch.nn.Linear(2, 2)
            best = None
        """,
        """
            best = copy.deepcopy(m.state_dict())
            m.weight.data.zero_()
        """,
        '(best, getattr(best, "_metadata", None))',
    ),
    "state alias": (
        """
            m = torch.nn.Linear(2, 2)
            best = None
        """,
        """
            best = m.state_dict()
            m.weight.data.zero_()
        """,
        '(best, best["weight"].data_ptr() == m.weight.data_ptr())',
    ),
    "ema .data large": (
        'sh = {"w": torch.zeros(300, 300)}',
        'sh["w"].data.add_(1)',
        '(sh["w"].sum(),)',
    ),
    "from_numpy large": (
        """
            n = np.zeros(90000, np.float32)
            t = torch.from_numpy(n)
        """,
        "n[3] = 7",
        "(t.sum(), n.sum())",
    ),
}

# What cannot be read.
REFUSED = {
    "numpy scalar dt": (
        'a = np.datetime64("2020-01-01")',
        "a = a + 1",
    ),
    "np recarray": (
        'a = np.zeros(3, dtype=[("x", "f4")]).view(np.recarray)',
        "a.x = 3",
    ),
    "np masked": (
        "a = np.ma.array([1, 2, 3])",
        "a[1] = np.ma.masked",
    ),
    "nonleaf": (
        """
            w = torch.ones(3, requires_grad=True)
            a = None
        """,
        "a = w * 2",
    ),
    "nonleaf list": (
        """
            w = torch.ones(3, requires_grad=True)
            a = []
        """,
        "a.append((w * 2).sum())",
    ),
    "sparse": (
        "a = torch.eye(3).to_sparse()",
        "a = a * 2",
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


LARGE = """
data = torch.arange(50_000.0)
array = np.arange(50_000.0)
"""


def test_what_is_large_and_unchanged_is_not_saved_and_its_hash_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = MadeAgain(tmp_path, monkeypatch, LARGE)
    trained = script.begin()
    script.see(trained)
    saved = script.read(trained)
    assert [node["k"] for node in saved.body["nodes"]].count("unchanged memory") == 2
    other = script.begin()
    other["data"][3] += 1
    with pytest.raises(MismatchError, match="data is not what it was"):
        script.put_back(saved, other)
    other = script.begin()
    other["array"] = None
    with pytest.raises(MismatchError, match="array was not made again"):
        script.put_back(saved, other)


@pytest.mark.parametrize("writes", ["data.data[3] = 7", "data.numpy()[3] = 7", "data[3] = 7"])
def test_what_is_large_is_saved_however_it_was_written(
    writes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = MadeAgain(tmp_path, monkeypatch, LARGE)
    trained = script.begin()
    script.see(trained)
    script.read(trained)
    script.run(writes, trained)
    again = script.begin()
    script.put_back(script.read(trained), again)
    assert again["data"][3] == 7
    assert torch.equal(again["data"], trained["data"])


def test_a_graph_that_a_backward_pass_has_freed_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts keep the loss of the last step, and sums of such."""
    script = MadeAgain(tmp_path, monkeypatch, "total = 0\nw = torch.ones(3, requires_grad=True)\n")
    _, again = script.come_back("""
        loss = (w * 2).exp().sum()
        loss.backward()
        total += loss * 8
    """)
    assert float(again["total"]) == pytest.approx(24 * 7.389, rel=1e-3)
    assert not again["total"].requires_grad


def test_an_array_that_is_made_apart_is_not_put_back_as_part_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = MadeAgain(tmp_path, monkeypatch, "array = np.zeros(8)\ntail = torch.zeros(5)\n")
    with pytest.raises(MismatchError, match="no longer part of the memory"):
        script.come_back("tail = torch.from_numpy(array[3:])")
