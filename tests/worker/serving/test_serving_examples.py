"""Examples are tensors by name, in whatever way they are given."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpujob_worker.serving.examples import read_examples
from gpujob_worker.serving.signature import InputError

X = torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "calibration.safetensors"
    save_file({"x": X}, path)
    found = read_examples(kind(path))
    assert list(found) == ["x"]
    assert torch.equal(found["x"], X)


def test_one_tensor_is_the_only_input() -> None:
    found = read_examples(X.clone().requires_grad_())
    assert list(found) == ["input"]
    assert not found["input"].requires_grad


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("missing.safetensors", "examples: there is no file missing.safetensors; save a batch"),
        ([X], "examples: must be a tensor, a dict .*; got list"),
        (None, "examples: must be a tensor, .*; got NoneType"),
        ({"x": [1.0]}, "examples: must have names and tensors; got list for 'x'"),
        ({0: X}, "examples: must have names and tensors; got Tensor for 0"),
    ],
)
def test_what_is_no_example_is_refused_with_the_next_step(given: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        read_examples(given)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"x": X}, path)
    with pytest.raises(InputError, match=r"weights.pt is not a file of safetensors: .*; save a"):
        read_examples(path)
