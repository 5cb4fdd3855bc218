"""Fixtures for all tests; what needs a cluster is only started when a test asks for it."""

import asyncio
import signal

import pytest

# Where the tests run in the background, SIGINT is ignored, and every child would inherit that:
# what Ctrl-C does could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.harness.cluster"]


def pytest_configure(config: pytest.Config) -> None:
    """Before Python 3.14 pytest-asyncio's look for a current event loop makes one, never closed.

    Saying that there is none prevents it; the warning would fail the first test after it.
    """
    asyncio.set_event_loop(None)
