"""How float32 products are computed is the script's choice, by either of torch's interfaces.

A check of a split needs exact ones, and leaves the choice as it was.
"""

from collections.abc import Callable, Generator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.process_flags import without_tf32
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.tune.split_check import split_refusal
from tests.harness.worker_process import run_worker

SCRIPT = """
import sys, torch
from torch import nn
{choice}
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
x = torch.randn(32, 16)
for _ in range(10):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
from gpujob_worker.inject.process_flags import float32_products, tf32_refusal
print(float32_products(), "|", tf32_refusal())
"""
NEWER = hasattr(torch.backends.cuda.matmul, "fp32_precision")
CHOICES = {
    "": "highest | None",
    "torch.set_float32_matmul_precision('high')": "high | the script chose 'high' itself",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "tf32 | the script chose 'tf32' itself",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_it_is_known_and_ends_no_tuning(choice: str, tmp_path: Path) -> None:
    if "fp32_precision" in choice and not NEWER:
        pytest.skip("this torch has the older interface only")
    (tmp_path / "train.py").write_text(SCRIPT.format(choice=choice))
    code, run = run_worker(
        tmp_path,
        [str(tmp_path / "train.py")],
        settings={"compile": "Off"},
        options=("--explain", "--tuning-seconds", "1"),
    )
    assert code == 0, run.errors
    assert run.output.strip() == CHOICES[choice]
    lines = run.report["explain"]
    assert not [line for line in lines if "measuring failed" in line]
    assert [line for line in lines if line.startswith("fused optimizer ")]


backends: Any = torch.backends
FLAGS = (
    "cuda.matmul.allow_tf32",
    "cudnn.allow_tf32",
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
)


def flags() -> list[object]:
    """By every interface of this torch; an error is one where they do not agree."""
    reads: list[Callable[[], object]] = [torch.get_float32_matmul_precision]
    reads += [lambda path=path: attrgetter(path)(backends) for path in FLAGS]
    found: list[object] = []
    for read in reads:
        try:
            found.append(read())
        except (AttributeError, RuntimeError) as error:
            found.append(type(error))
    return found


def by_default() -> None:
    pass


def by_older_interface() -> None:
    torch.set_float32_matmul_precision("medium")


def by_newer_interface() -> None:
    backends.cuda.matmul.fp32_precision = "tf32"
    backends.cudnn.rnn.fp32_precision = "ieee"


def for_all_backends() -> None:
    backends.fp32_precision = "tf32"


@pytest.fixture(params=[by_default, by_older_interface, by_newer_interface, for_all_backends])
def chosen(request: pytest.FixtureRequest) -> Generator[list[object]]:
    """The flags after a script's choice of TF32."""
    if request.param in (by_newer_interface, for_all_backends) and not NEWER:
        pytest.skip("this torch has the older interface only")
    request.param()
    found = flags()
    assert {True, "tf32"} & set(found), "convolutions are in TF32 unless a script says otherwise"
    yield found
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = True
    if NEWER:
        backends.fp32_precision = "none"
        backends.cuda.matmul.fp32_precision = backends.mkldnn.matmul.fp32_precision = "none"


class Looking(torch.autograd.Function):
    """Notes the flags in forward and in backward."""

    seen: list[list[object]]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        del ctx
        Looking.seen.append(flags())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        Looking.seen.append(flags())
        return gradients[0]


class Net(nn.Linear):
    def __init__(self, fails: bool) -> None:
        super().__init__(4, 4)
        self.fails = fails

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as torch has it
        out: Any = Looking.apply(super().forward(input))
        if self.fails:
            raise ValueError("no such kernel")
        return out


@pytest.mark.parametrize("fails", [False, True])
def test_a_split_is_checked_without_tf32(fails: bool, chosen: list[object]) -> None:
    """Whose rounding alone would refuse it: cuDNN takes another kernel for another batch."""
    Looking.seen = []
    root = Root(Net(fails), lambda _: None)
    refusal = split_refusal(root, RecordedCall(CallInputs.of((torch.randn(6, 4),), {})))
    assert refusal == ("a probe failed: ValueError: no such kernel" if fails else None)
    assert len(Looking.seen) > (0 if fails else 2)
    for seen in Looking.seen:
        assert not {True, "tf32", "high", "medium"} & set(seen)
    assert flags() == chosen


def test_flags_that_are_off_stay_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.cudnn, "allow_tf32", False)
    before = flags()
    with without_tf32():
        assert flags() == before
    assert flags() == before
