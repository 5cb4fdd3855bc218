"""PersistentVolumes in the cache: which claim has one, and which nodes it can be used on."""

import pytest

from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import BoundVolume
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.clocks import FakeClock
from tests.harness.manifests import Manifest, volume_manifest


@pytest.fixture
def cache() -> Cache:
    return Cache(Dirty(), Metrics(), FakeClock().now)


def known(cache: Cache) -> tuple[BoundVolume, ...]:
    return cache.snapshot((), Configuration()).volumes


def test_a_bound_volume_is_known_by_its_claim_and_its_nodes_alone(cache: Cache) -> None:
    assert cache.apply(Kind.VOLUME, "ADDED", volume_manifest("a", "b"))
    expression = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    nodes = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    assert known(cache) == (BoundVolume("volume", "team", "checkpoints", nodes),)


@pytest.mark.parametrize(
    "manifest",
    [
        volume_manifest(),
        volume_manifest("a", claim=None),
        volume_manifest("a", phase="Available"),
        volume_manifest("a", phase="Released"),
        {**volume_manifest("a"), "spec": "odd"},
        {**volume_manifest("a"), "status": None},
    ],
    ids=["of all nodes", "of nobody", "not bound yet", "of a claim that is gone", "odd", "new"],
)
def test_other_volumes_say_nothing(cache: Cache, manifest: Manifest) -> None:
    cache.apply(Kind.VOLUME, "ADDED", manifest)
    assert known(cache) == ()


def test_what_changes_of_a_volume_is_taken_over(cache: Cache) -> None:
    cache.apply(Kind.VOLUME, "ADDED", volume_manifest("a", phase="Pending", version=1))
    assert cache.apply(Kind.VOLUME, "MODIFIED", volume_manifest("a", version=2))
    assert [one.claim for one in known(cache)] == ["checkpoints"]
    assert not cache.apply(Kind.VOLUME, "MODIFIED", volume_manifest("a", version=3)), "as before"
    cache.apply(Kind.VOLUME, "DELETED", volume_manifest("a", version=4))
    assert known(cache) == ()


def test_no_user_waits_for_the_cycle_of_a_volume() -> None:
    """A claim is bound while its first pod starts: nothing is decided anew for that."""
    dirty = Dirty()
    cache = Cache(dirty, Metrics(), FakeClock().now)
    cache.apply(Kind.VOLUME, "ADDED", volume_manifest("a"))
    assert dirty.any.is_set()
    assert not dirty.urgent.is_set()
