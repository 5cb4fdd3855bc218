"""What a pod asks of its node: by hand, and against the rule of kube-scheduler stated slowly."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpujob_operator.decide.model.pod_requests import (
    WHOLE_NODE,
    PodRequests,
    pod_requests,
    requests_while_resized,
)
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.read.pods import cached_pod
from tests.harness.builders import make_job
from tests.harness.manifests import pod_manifest

Spec = dict[str, Any]


def _container(cpu: str, memory: str, **fields: Any) -> Spec:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **fields}


def _sidecar(cpu: str, memory: str) -> Spec:
    return _container(cpu, memory, restartPolicy="Always")


def test_containers_add_up_and_init_containers_do_not() -> None:
    spec = {
        "containers": [_container("1", "1Gi"), _container("500m", "1Gi")],
        "initContainers": [_container("4", "1Mi"), _container("1", "5Gi")],
    }
    assert pod_requests(spec) == PodRequests(4000, 5 * 1024**3)


def test_sidecars_run_beside_the_containers() -> None:
    spec = {
        "containers": [_container("1", "1Gi")],
        "initContainers": [_sidecar("1", "1Gi")],
        "overhead": {"cpu": "100m", "memory": "1Mi"},
    }
    assert pod_requests(spec) == PodRequests(2100, 2 * 1024**3 + 1024**2)


def test_a_limit_without_a_request_is_a_request() -> None:
    spec = {"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}}]}
    assert pod_requests(spec) == PodRequests(2000, 1024**3)


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ({}, (1000, 2**30)),
        ({"allocatedResources": {"cpu": "3"}}, (3000, 2**30)),
        ({"allocatedResources": {"cpu": "500m", "memory": "2Gi"}}, (1000, 2**31)),
        ({"resources": {"requests": {"cpu": "2"}}}, (2000, 2**30)),
        ({"allocatedResources": {"cpu": ["odd"]}}, (1000, 2**30)),
        ({"allocatedResources": 3}, (1000, 2**30)),
    ],
)
def test_a_pod_that_is_resized_counts_what_it_still_has(
    status: Spec, wanted: tuple[int, int]
) -> None:
    spec = {"containers": [_container("1", "1Gi", name="worker")]}
    seen = {"containerStatuses": [{"name": "worker", **status}, {"name": "other"}]}
    assert requests_while_resized(spec, seen) == PodRequests(*wanted)
    assert requests_while_resized({"containers": 3}, seen) == WHOLE_NODE
    manifest = pod_manifest()
    manifest["spec"], manifest["status"] = spec, {**manifest.get("status", {}), **seen}
    assert cached_pod(manifest).requests == PodRequests(*wanted)


def _resized(spec: Spec, status: Spec, reason: str = "") -> PodRequests:
    conditions = [{"type": "PodScheduled"}, {"type": "PodResizePending", "reason": reason}]
    return requests_while_resized(spec, {**status, "conditions": conditions if reason else None})


def test_a_container_that_shrinks_counts_what_it_still_has() -> None:
    """Its kubelet allocates the lower amount first, and then waits for the memory to be free."""
    spec: Spec = {
        "containers": [_container("1", "1Gi", name="a"), _container("2", "1Gi", name="b")]
    }
    shrinks: Spec = {"allocatedResources": {"cpu": "1", "memory": "1Gi"}}
    shrinks["resources"] = {"requests": {"cpu": "8", "memory": "4Gi"}}
    status = {"containerStatuses": [{"name": "a", **shrinks}]}
    assert _resized(spec, status) == PodRequests(10_000, 5 * 2**30)


def test_each_container_counts_the_most_that_it_asks_or_has() -> None:
    spec: Spec = {"containers": [_container("1", "0", name="a"), _container("4", "0", name="b")]}
    grown = [
        {"name": "a", "resources": {"requests": {"cpu": "4"}}},
        {"name": "b", "resources": {"requests": {"cpu": "1"}}},
    ]
    assert _resized(spec, {"containerStatuses": grown}).cpu_milli == 8000


@pytest.mark.parametrize(
    ("reason", "cpu_milli"), [("Infeasible", 2000), ("Deferred", 64_000), ("", 64_000)]
)
def test_a_change_that_no_node_allows_does_not_count(reason: str, cpu_milli: int) -> None:
    """An autoscaler may ask for more than its node has. The pod stays as it is."""
    asked: Spec = {"requests": {"cpu": "64"}, "limits": {"cpu": "64"}}
    spec = {"containers": [{"name": "a", "resources": asked}]}
    has = {"allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}}
    assert _resized(spec, {"containerStatuses": [{"name": "a", **has}]}, reason) == PodRequests(
        cpu_milli, 0
    )
    unread = {"containerStatuses": [{"name": "a"}]}
    assert _resized(spec, unread, reason).cpu_milli == 64_000, "nothing else is known"


@pytest.mark.parametrize(("reason", "cpu_milli"), [("Infeasible", 3000), ("", 5000)])
def test_a_sidecar_is_resized_like_a_container(reason: str, cpu_milli: int) -> None:
    spec: Spec = {
        "containers": [_container("1", "0", name="a")],
        "initContainers": [_sidecar("4", "0"), _container("1", "0", name="step")],
    }
    spec["initContainers"][0]["name"] = "mesh"
    has = [
        {"name": "mesh", "resources": {"requests": {"cpu": "2"}}},
        {"name": "step", "resources": {"requests": {"cpu": "32"}}},
    ]
    assert _resized(spec, {"initContainerStatuses": has}, reason).cpu_milli == cpu_milli


@pytest.mark.parametrize("conditions", [3, [3], [{"type": ["odd"]}], {}])
def test_odd_conditions_of_a_pod_say_nothing(conditions: object) -> None:
    spec = {"containers": [_container("1", "1Gi", name="a")]}
    has = [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]
    status = {"containerStatuses": has, "conditions": conditions}
    assert requests_while_resized(spec, status) == PodRequests(2000, 2**30)


def test_nothing_requested() -> None:
    assert pod_requests({"containers": [{}]}) == PodRequests(0, 0)


def test_an_init_container_runs_beside_the_sidecars_before_it() -> None:
    spec: Spec = {
        "containers": [_container("1", "1Gi")],
        "initContainers": [_sidecar("1", "1Gi"), _container("4", "2Gi"), _sidecar("1", "1Gi")],
    }
    assert pod_requests(spec) == PodRequests(5000, 3 * 1024**3)


def test_a_sidecar_does_not_count_beside_what_starts_before_it() -> None:
    spec: Spec = {"containers": [], "initContainers": [_container("4", "0"), _sidecar("1", "0")]}
    assert pod_requests(spec) == PodRequests(4000, 0)


@pytest.mark.parametrize(
    ("resources", "cpu_milli"),
    [
        ({"requests": {"cpu": "8"}}, 8000),
        ({"limits": {"cpu": "8"}}, 2000),
        ({"requests": {"memory": "1"}, "limits": {"cpu": "8"}}, 2000),
    ],
)
def test_what_a_pod_states_for_itself_counts(resources: Spec, cpu_milli: int) -> None:
    spec: Spec = {"resources": resources, "containers": [{"resources": {"limits": {"cpu": "2"}}}]}
    assert pod_requests(spec).cpu_milli == cpu_milli


def test_the_limit_of_a_pod_counts_where_no_container_asks() -> None:
    spec: Spec = {"resources": {"limits": {"memory": "1Gi"}}, "containers": [{}]}
    assert pod_requests(spec).memory_bytes == 1024**3


# -- the rule, stated slowly: what each moment of the pod's life takes, on plain numbers

_UNITS = {"m": Fraction(1, 1000), "": Fraction(1), "k": 1000, "Ki": 1024, "e3": 1000, "Gi": 2**30}


def _number(text: str) -> Fraction:
    unit = max((one for one in _UNITS if text.endswith(one)), key=len)
    return Fraction(text.removesuffix(unit)) * _UNITS[unit]


def _asked(holder: Spec, resource: str) -> Fraction | None:
    resources: dict[str, dict[str, str]] = holder.get("resources", {})
    for kind in ("requests", "limits"):
        if resource in resources.get(kind, {}):
            return _number(resources[kind][resource])
    return None


def _moments(spec: Spec) -> list[list[Spec]]:
    """The containers that are there at each moment: while each init container starts, and later."""
    starting: list[Spec] = spec.get("initContainers", [])
    sidecars = [one.get("restartPolicy") == "Always" for one in starting]
    moments = [
        [*(one for one, stays in zip(starting[:at], sidecars, strict=False) if stays), starting[at]]
        for at in range(len(starting))
    ]
    staying = [one for one, stays in zip(starting, sidecars, strict=True) if stays]
    return [*moments, [*staying, *spec["containers"]]]


def _slow_requests(spec: Spec, resource: str) -> Fraction:
    amounts = [[_asked(one, resource) for one in moment] for moment in _moments(spec)]
    anybody_asks = any(amount is not None for moment in amounts for amount in moment)
    together = max(sum((a for a in moment if a is not None), Fraction(0)) for moment in amounts)
    own: dict[str, dict[str, str]] = spec.get("resources", {})
    if resource in own.get("requests", {}):
        together = _number(own["requests"][resource])
    elif resource in own.get("limits", {}) and not anybody_asks:
        together = _number(own["limits"][resource])
    overhead: dict[str, str] = spec.get("overhead", {})
    return together + (_number(overhead[resource]) if resource in overhead else 0)


CPU = st.sampled_from(["0", "1", "250m", "1.5", "2e3", "3k"])
MEMORY = st.sampled_from(["0", "1", "1.5Ki", "2Gi", "7e3", "1024"])
AMOUNTS = st.fixed_dictionaries({}, optional={"cpu": CPU, "memory": MEMORY})
RESOURCES = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})
CONTAINERS = st.fixed_dictionaries({"resources": RESOURCES})
STARTING = st.one_of(CONTAINERS, CONTAINERS.map(lambda one: {**one, "restartPolicy": "Always"}))
SPECS = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINERS, min_size=1, max_size=3)},
    optional={
        "initContainers": st.lists(STARTING, max_size=4),
        "resources": RESOURCES,
        "overhead": AMOUNTS,
    },
)


@given(SPECS)
@example({"containers": [{}], "initContainers": [_sidecar("1", "1Gi"), _container("2", "1Gi")]})
def test_requests_are_those_that_kube_scheduler_counts(spec: Spec) -> None:
    found = pod_requests(spec)
    assert found.cpu_milli == _slow_requests(spec, "cpu") * 1000
    assert found.memory_bytes == _slow_requests(spec, "memory")


@given(SPECS)
def test_a_job_is_placed_by_what_its_pod_is_charged_for(spec: Spec) -> None:
    worker, *others = spec["containers"]
    spec = {**spec, "containers": [{"name": "worker", **worker}, *others]}
    job = make_job("job", template={"spec": spec})
    assert host_requests(job) == cached_pod({**pod_manifest(job), "spec": spec}).requests
