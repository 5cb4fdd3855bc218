"""The devices that a test of the worker runs on: the CPU, and an imitated GPU."""

from collections.abc import Generator

import pytest

from tests.harness.imitated_gpu import installed


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Generator[str]:
    """Tests that ask for it run twice. Under "cuda" time is virtual, too."""
    if request.param == "cpu":
        yield "cpu"
        return
    with installed():
        yield "cuda"
