"""What modules and optimizers have besides their own states comes back, or is refused."""

from pathlib import Path

import pytest

from gpujob_worker.checkpoint.errors import UnsavableError
from tests.harness.made_again import MadeAgain

# What the script does before its first step, what it does while it trains, and what is compared.
EQUAL = {
    "dropout p": (
        "m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))",
        "m[1].p = 0.1",
        "m[1].p",
    ),
    "train flag": (
        "m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))",
        "m[1].eval()",
        "(m.training, m[1].training)",
    ),
    "stateless module attr": (
        """
            class L(torch.nn.Module):
                def __init__(s):
                    super().__init__()
                    s.n = 0
            c = L()
        """,
        "c.n += 3",
        "c.n",
    ),
    "stateless module flag": (
        "c = torch.nn.Dropout(0.5)",
        """
            c.eval()
            c.p = 0.1
        """,
        "(c.training, c.p)",
    ),
    "submodule var": (
        """
            m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
            c = m[0]
        """,
        "c = m[1]",
        "c is m[1]",
    ),
    "submodule list": (
        """
            m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
            c = []
        """,
        "c.append(m[1])",
        "c[0] is m[1]",
    ),
    "group var": (
        """
            m = torch.nn.Linear(2, 2)
            o = torch.optim.SGD(m.parameters(), lr=0.1)
            g = o.param_groups[0]
            gs = o.param_groups
        """,
        'g["lr"] = 0.5',
        '(g is o.param_groups[0], gs is o.param_groups, o.param_groups[0]["lr"])',
    ),
    "buffer nonpersist": (
        """
            class L(torch.nn.Module):
                def __init__(s):
                    super().__init__()
                    s.w = torch.nn.Parameter(torch.ones(1))
                    s.register_buffer("b", torch.zeros(2), persistent=False)
            c = L()
        """,
        "c.b += 1",
        "c.b",
    ),
    "buffer nonpersist grown": (
        """
            class L(torch.nn.Module):
                def __init__(s):
                    super().__init__()
                    s.w = torch.nn.Parameter(torch.ones(1))
                    s.register_buffer("b", torch.zeros(2), persistent=False)
            c = L()
        """,
        "c.b = torch.ones(5)",
        "c.b",
    ),
    "module attr tensor": (
        """
            class L(torch.nn.Module):
                def __init__(s):
                    super().__init__()
                    s.w = torch.nn.Parameter(torch.ones(1))
                    s.h = None
            c = L()
        """,
        "c.h = torch.ones(5)",
        "c.h",
    ),
    "module attr deleted": (
        """
            class L(torch.nn.Module):
                def __init__(s):
                    super().__init__()
                    s.w = torch.nn.Parameter(torch.ones(1))
                    s.h = None
            c = L()
        """,
        "del c.h",
        'hasattr(c, "h")',
    ),
    "tied": (
        """
            m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
            m[1].weight = m[0].weight
        """,
        "m[0].weight.data.fill_(3)",
        "(m[0].weight is m[1].weight, m[1].weight)",
    ),
    "bare param": (
        """
            p = torch.nn.Parameter(torch.zeros(2))
            o = torch.optim.SGD([p], lr=0.1)
        """,
        """
            p.data += 1
            q = p
        """,
        '(p, o.param_groups[0]["params"][0] is p, q is p)',
    ),
    "bare param replaced": (
        """
            p = torch.nn.Parameter(torch.zeros(2))
            o = torch.optim.SGD([p], lr=0.1)
        """,
        """
            p = torch.nn.Parameter(torch.ones(2))
            o.param_groups[0]["params"][0] = p
        """,
        '(p, o.param_groups[0]["params"][0] is p)',
    ),
    "master": (
        """
            m = torch.nn.Linear(2, 2).bfloat16()
            w = [p.detach().clone().float().requires_grad_() for p in m.parameters()]
            o = torch.optim.SGD(w, lr=0.1)
        """,
        "w[0].data += 1",
        '(w, o.param_groups[0]["params"][0] is w[0])',
    ),
    "bn": (
        "m = torch.nn.BatchNorm1d(2)",
        """
            m(torch.randn(4, 2))
            m.momentum = 0.3
        """,
        "(m.running_mean, m.num_batches_tracked, m.momentum)",
    ),
    "sched lambda": (
        """
            m = torch.nn.Linear(2, 2)
            o = torch.optim.SGD(m.parameters(), lr=0.1)
            k = 1.0
            def f(e):
                return k / (e + 1)
            s = torch.optim.lr_scheduler.LambdaLR(o, f)
        """,
        """
            k = 5.0
            o.step()
            s.step()
        """,
        '(s.get_last_lr(), k, o.param_groups[0]["lr"])',
    ),
    "param replaced in module": (
        """
            m = torch.nn.Linear(2, 2)
            w = m.weight
        """,
        "m.weight = torch.nn.Parameter(torch.ones(2, 2))",
        "(w is m.weight, m.weight, w)",
    ),
}

# What cannot be read.
REFUSED = {
    "added group": (
        """
            m = torch.nn.Linear(2, 2)
            o = torch.optim.SGD([m.weight], lr=0.1)
        """,
        'o.add_param_group({"params": [m.bias]})',
    ),
    "buffer none": (
        """
            class L(torch.nn.Module):
                def __init__(s):
                    super().__init__()
                    s.w = torch.nn.Parameter(torch.ones(1))
                    s.register_buffer("b", None)
            c = L()
        """,
        "c.b = torch.ones(5)",
    ),
    "tied later": (
        "m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))",
        "m[1].weight = m[0].weight",
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
