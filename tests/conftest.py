"""Fixtures for all tests; what needs a cluster is only started when a test asks for it."""

import asyncio
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Where the tests run in the background, SIGINT is ignored, and every child would inherit that:
# what Ctrl-C does could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test-oldest` has the worker's packages alone.
pytest_plugins = ["tests.harness.cluster"] if find_spec("kubernetes") else []

TESTS = Path(__file__).parent
# Files are given to whichever process is free, so those that take long must not come last: first
# those with slow tests or time limits of their own, then all others of these folders.
LONG = ("chaos", "simulation", "worker", "integration", "property", "chart")
SLOW = ("slow", "timeout")
# Tracing lines makes these take three times as long, and says nothing that unit tests do not.
UNTRACED = ("simulation", "property")

# No property depends on how fast the machine is, nor on what an earlier run left in a folder: what
# fails is said with the text that reproduces it. Where the variable CI is set, the examples are the
# same every time, so that a failure there comes back when its test is run once more.
settings.register_profile(
    "gpujob",
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        # A fixture serves all examples of a property, as a cluster serves all objects.
        HealthCheck.function_scoped_fixture,
    ],
    database=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("gpujob")


def pytest_configure(config: pytest.Config) -> None:
    """Before Python 3.14 pytest-asyncio's look for a current event loop makes one, never closed.

    Saying that there is none prevents it; the warning would fail the first test after it.
    """
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first, then those of folders with long ones; else the order stays random."""
    folders = {item: item.path.relative_to(TESTS).parts[0] for item in items}
    for item, folder in folders.items():
        if folder in UNTRACED:
            item.add_marker("no_cover")
    slow = {item.path for item in items for name in SLOW if item.get_closest_marker(name)}
    items.sort(key=lambda item: (item.path not in slow, folders[item] not in LONG))
