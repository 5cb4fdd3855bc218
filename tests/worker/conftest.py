"""The devices that a test of the worker runs on (the CPU, and an imitated GPU), and an operator."""

from collections.abc import Generator

import pytest
import torch

from tests.harness.imitated_gpu import installed
from tests.harness.report_receiver import Operator


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Generator[str]:
    """Tests that ask for it run twice. Under "cuda" time is virtual, too."""
    if request.param == "cpu":
        yield "cpu"
        return
    with installed():
        yield "cuda"


@pytest.fixture(autouse=True)
def products_as_before() -> Generator[None]:
    """TF32 is a switch of the whole process; a test that leaves it on would change the next one."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def operator() -> Generator[Operator]:
    """Receives the reports of the processes that the test starts."""
    server = Operator()
    yield server
    server.close()
