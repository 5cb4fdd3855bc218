"""Fixtures for all tests; what needs a cluster is only started when a test asks for it."""

import asyncio

import pytest

pytest_plugins = ["tests.harness.cluster"]


def pytest_configure(config: pytest.Config) -> None:
    """Before Python 3.14 pytest-asyncio's look for a current event loop makes one, never closed.

    Saying that there is none prevents it; the warning would fail the first test after it.
    """
    asyncio.set_event_loop(None)
