"""Two processes that want the same Lease, for the tests of it."""

import pytest

from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.lease_candidates import Candidate


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def one(kube: FakeKube, clock: FakeClock) -> Candidate:
    return Candidate(kube, clock, "one")


@pytest.fixture
def two(kube: FakeKube, clock: FakeClock) -> Candidate:
    return Candidate(kube, clock, "two")
