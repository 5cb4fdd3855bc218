"""These tests need a CUDA GPU: `make test-gpu`. Elsewhere the same is shown on an imitated one."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Without a GPU they fail: nobody asks for them but on a machine with one."""
    assert torch.cuda.is_available(), "no CUDA device is available here"
