"""Since when a kubelet has given a reason why a pod does not start."""

from datetime import datetime, timedelta

import pytest

from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.start_waits import StartWaits
from gpujob_operator.read.pods import cached_pod
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job
from tests.harness.clocks import START, FakeClock
from tests.harness.manifests import Manifest, pod_manifest

FIRST = START + timedelta(seconds=100)


class Kubelet:
    """A kubelet's words on one pod, as a cache hears them."""

    def __init__(self) -> None:
        self.clock, self.dirty = FakeClock(), Dirty()
        self.cache = Cache(self.dirty, Metrics(), self.clock.now)
        self.version = 1
        self.clock.advance(100)

    def says(self, reason: str = "ErrImagePull", *, phase: str = "Pending") -> datetime | None:
        """Returns since when the cache takes the pod to wait for a reason."""
        manifest = waiting_pod(reason, phase=phase, version=self.version)
        self.version += 1
        self.cache.apply(Kind.POD, "MODIFIED", manifest)
        return self.since

    @property
    def since(self) -> datetime | None:
        pod = self.cache.listers.pod("pod-uid")
        assert pod is not None
        return pod.reason_since


def waiting_pod(
    reason: str, *, phase: str = "Pending", node: str | None = "n0", version: int = 1
) -> Manifest:
    state = {"waiting": {"reason": reason}}
    return pod_manifest(
        make_job(), uid="pod-uid", version=version, node=node, phase=phase, state=state
    )


def test_the_time_is_that_of_the_first_reason() -> None:
    kubelet = Kubelet()
    assert kubelet.says("ContainerCreating") is None
    assert kubelet.says("ErrImagePull") == FIRST
    kubelet.clock.advance(20)
    assert kubelet.says("ImagePullBackOff") == FIRST


@pytest.mark.parametrize(("reason", "phase"), [("ContainerCreating", "Pending"), ("x", "Running")])
def test_a_pod_that_gets_on_waits_anew_if_it_stops_again(reason: str, phase: str) -> None:
    kubelet = Kubelet()
    kubelet.says()
    assert kubelet.says(reason, phase=phase) is None
    kubelet.clock.advance(20)
    assert kubelet.says() == FIRST + timedelta(seconds=20)


def test_a_pod_without_a_node_waits_for_no_kubelet() -> None:
    kubelet = Kubelet()
    kubelet.cache.apply(Kind.POD, "ADDED", waiting_pod("ErrImagePull", node=None))
    assert kubelet.since is None


def test_the_time_moves_with_the_clock() -> None:
    """Else an hour's step of the clock would end the wait at once, or never."""
    kubelet = Kubelet()
    kubelet.says()
    kubelet.dirty.take()
    kubelet.cache.clock_moved(timedelta(hours=1))
    assert kubelet.since == FIRST + timedelta(hours=1)
    assert kubelet.dirty.count == 1
    kubelet.clock.advance(20)
    assert kubelet.says("ImagePullBackOff") == FIRST + timedelta(hours=1)


def test_nothing_is_kept_of_a_pod_that_is_gone() -> None:
    kubelet = Kubelet()
    kubelet.says()
    kubelet.cache.apply(Kind.POD, "DELETED", waiting_pod("ErrImagePull", version=9))
    assert kubelet.cache.listers.pod("pod-uid") is None
    waits = StartWaits(kubelet.clock.now)
    waits.noted(cached_pod(waiting_pod("ErrImagePull")))
    waits.forget("pod-uid")
    assert waits.clock_moved(timedelta(0)) == ()
