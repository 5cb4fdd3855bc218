"""What a newer version wrote into a status is there after a write of this one."""

from typing import Any

import pytest

from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed
from tests.harness.clocks import FakeClock
from tests.harness.manifests import Manifest, job_manifest

JOB = placed(make_job())
UID = JOB.metadata.uid


@pytest.fixture
def cache() -> Cache:
    return Cache(Dirty(), Metrics(), FakeClock().now)


def stored(version: int, **status: Any) -> Manifest:
    manifest = job_manifest(JOB, version)
    manifest["status"] |= status
    return manifest


def test_fields_of_a_newer_version_are_kept_while_they_are_there(cache: Cache) -> None:
    cache.apply(Kind.JOB, "ADDED", stored(1))
    assert cache.unknown_fields(Kind.JOB, UID) == {}
    cache.apply(Kind.JOB, "MODIFIED", stored(2, forecast={"seconds": 5}))
    assert cache.unknown_fields(Kind.JOB, UID) == {"forecast": {"seconds": 5}}
    cache.apply(Kind.JOB, "MODIFIED", stored(1, forecast="old"))
    assert cache.unknown_fields(Kind.JOB, UID) == {"forecast": {"seconds": 5}}
    cache.apply(Kind.JOB, "MODIFIED", stored(3))
    assert cache.unknown_fields(Kind.JOB, UID) == {}


def test_what_is_in_known_objects_is_found(cache: Cache) -> None:
    placement = {**job_manifest(JOB)["status"]["placement"], "rack": "r7"}
    cache.apply(Kind.JOB, "ADDED", stored(1, placement=placement))
    assert cache.unknown_fields(Kind.JOB, UID) == {"placement": {"rack": "r7"}}


def test_of_a_job_that_cannot_be_read_the_whole_status_stays(cache: Cache) -> None:
    manifest = stored(1)
    manifest["spec"]["workers"] = 0
    cache.apply(Kind.JOB, "ADDED", manifest)
    assert cache.unknown_fields(Kind.JOB, UID) == manifest["status"]
    cache.apply(Kind.JOB, "MODIFIED", stored(2))
    assert cache.unknown_fields(Kind.JOB, UID) == {}


def test_nothing_is_kept_of_what_is_gone(cache: Cache) -> None:
    cache.apply(Kind.JOB, "ADDED", stored(1, forecast=1))
    cache.apply(Kind.JOB, "DELETED", stored(2, forecast=1))
    assert cache.unknown_fields(Kind.JOB, UID) == {}
