"""One control plane with the chart's policies, which hold in all of it: for these tests alone."""

from collections.abc import Generator

import pytest

from tests.harness.cluster import running_control_plane
from tests.harness.tenants import Tenants


@pytest.fixture(scope="module")
def tenants() -> Generator[Tenants]:
    with running_control_plane() as running:
        yield Tenants.with_policies(running)
