"""One zygote for all tests of a file."""

from collections.abc import Generator

import pytest

from tests.worker.resume.shapes.runs import Zygote


@pytest.fixture(scope="module")
def zygote() -> Generator[Zygote]:
    with Zygote() as found:
        yield found
