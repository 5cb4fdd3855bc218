"""A seed logs thousands of lines; what matters of them is in its violations."""

import logging
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True)
def _quiet_operator() -> Generator[None]:
    logger = logging.getLogger("gpujob_operator")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
